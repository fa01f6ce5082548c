class NativeScaler:
    def __init__(self, scaler):
        self._scaler = scaler

    def __call__(self, loss, optimizer, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.unscale_(optimizer)
            self._scaler.step(optimizer)
            self._scaler.update()


def train(args, model, loader, optimizer, criterion, scaler):
    loss_scaler = NativeScaler(scaler)
    n = len(loader) // args.accum_iter * args.accum_iter
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        if i >= n:
            break
        loss = criterion(model(x), y)
        loss /= args.accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters(), update_grad=(i + 1) % args.accum_iter == 0)
        if (i + 1) % args.accum_iter == 0:
            optimizer.zero_grad()
