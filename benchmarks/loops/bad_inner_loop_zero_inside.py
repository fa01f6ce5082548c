def train(model, data_iter, optimizer, criterion, max_steps, grad_accum_steps):
    for step in range(max_steps):
        for micro_step in range(grad_accum_steps):
            x, y = next(data_iter)
            optimizer.zero_grad()  # error: [zero-grad-every-batch]
            loss = criterion(model(x), y) / grad_accum_steps
            loss.backward()
        optimizer.step()
