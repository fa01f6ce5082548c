import torch


def run(model, get_batch, optimizer, scaler, ctx, grad_clip, gradient_accumulation_steps, max_iters):
    X, Y = get_batch("train")
    iter_num = 0
    while True:
        for micro_step in range(gradient_accumulation_steps):
            with ctx:
                logits, loss = model(X, Y)
            X, Y = get_batch("train")
            scaler.scale(loss).backward()  # error: [missing-loss-scaling]
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if iter_num > max_iters:
            break
