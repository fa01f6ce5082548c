def train(fabric, model, optimizer, loader, accumulation_steps, epochs):
    for _ in range(epochs):
        for i, batch in enumerate(loader):
            outputs = model(**batch)
            outputs["loss"] /= accumulation_steps
            fabric.backward(outputs["loss"])
            if i % accumulation_steps == 0:
                optimizer.step()  # error: [off-by-one-window, remainder-dropped]
                optimizer.zero_grad()
