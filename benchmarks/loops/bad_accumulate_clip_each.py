def train(accelerator, model, optimizer, scheduler, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # error: [clip-before-complete]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
