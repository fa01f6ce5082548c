import deepspeed
import torch


def train(args, model, dataset):
    engine, optimizer, loader, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), training_data=dataset)
    for epoch in range(args.epochs):
        for step, (ids, labels) in enumerate(loader):
            ids, labels = ids.to(engine.device), labels.to(engine.device)
            loss = engine(ids, labels=labels).loss
            engine.backward(loss)
            engine.step()
            if engine.is_gradient_accumulation_boundary() and engine.global_steps % 10 == 0:
                print(loss.item())
