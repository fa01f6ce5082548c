from lightning.fabric import Fabric


def main(model, optimizer, loader, accum, epochs):
    fabric = Fabric(accelerator="cuda", devices=4)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for epoch in range(epochs):
        for iteration, batch in enumerate(loader):
            is_accumulating = (iteration + 1) % accum != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = model(batch).loss
                fabric.backward(loss)  # error: [missing-loss-scaling, unsynced-step]
            if not is_accumulating or iteration + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
