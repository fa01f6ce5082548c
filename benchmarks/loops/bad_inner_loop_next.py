def train(model, data_iter, optimizer, criterion, max_steps, grad_accum_steps):
    for step in range(max_steps):
        optimizer.zero_grad()
        for micro_step in range(grad_accum_steps):
            x, y = next(data_iter)
            logits = model(x)
            loss = criterion(logits, y)
            loss.backward()  # error: [missing-loss-scaling]
        optimizer.step()
