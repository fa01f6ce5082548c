def run(model, optimizer, data, max_iters, accumulate):
    data = iter(data)
    optimizer.zero_grad()
    for iteration in range(max_iters):
        batch = next(data)
        loss = model(batch) / accumulate
        loss.backward()
        if iteration % accumulate == 0 and iteration > 0:
            optimizer.step()  # error: [off-by-one-window, remainder-dropped]
            optimizer.zero_grad()
