def train(accelerator, model, optimizer, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()  # error: [zero-grad-misplaced]
            accelerator.backward(model(**batch).loss)
            optimizer.step()
