import deepspeed


def main(args, model, loader):
    model_engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            loss = model_engine(batch["input_ids"], labels=batch["labels"])
            model_engine.backward(loss)
            model_engine.step()
            if step % 10 == 0:
                print(loss.item())
