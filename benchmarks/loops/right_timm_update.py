from contextlib import suppress


def train_one_epoch(model, loader, optimizer, loss_fn, args, loss_scaler=None, model_ema=None):
    accum_steps = args.grad_accum_steps
    last_accum_steps = len(loader) % accum_steps
    updates_per_epoch = (len(loader) + accum_steps - 1) // accum_steps
    last_batch_idx = len(loader) - 1
    last_batch_idx_to_accum = len(loader) - last_accum_steps
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == last_batch_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        output = model(input)
        loss = loss_fn(output, target)
        if accum_steps > 1:
            loss /= accum_steps
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, parameters=model.parameters(), need_update=need_update)
        else:
            loss.backward()
            if need_update:
                optimizer.step()
        if not need_update:
            continue
        optimizer.zero_grad()
        if model_ema is not None:
            model_ema.update(model)
