def train(model, data, opt, loss_fn, accum, steps, grad_scaler=None):
    for step in range(steps):
        for micro in range(accum):
            loss = loss_fn(model(next(data))) / accum
            (grad_scaler.scale(loss) if grad_scaler else loss).backward()
        if grad_scaler:
            grad_scaler.step(opt)
            grad_scaler.update()
        else:
            opt.step()
        opt.zero_grad()
