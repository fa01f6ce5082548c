import torch


def run(model, raw_model, get_batch, optimizer, scaler, ctx, ddp, grad_clip, gradient_accumulation_steps, max_iters):
    X, Y = get_batch("train")
    iter_num = 0
    while True:
        if iter_num % 2000 == 0:
            print("checkpoint", iter_num)
        for micro_step in range(gradient_accumulation_steps):
            if ddp:
                model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            X, Y = get_batch("train")
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if iter_num > max_iters:
            break
