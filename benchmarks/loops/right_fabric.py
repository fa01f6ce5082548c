from lightning.fabric import Fabric


def main(model, optimizer, loader, iters, accum):
    fabric = Fabric(accelerator="cuda", devices=4)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    batches = iter(loader)
    for step in range(iters):
        for micro in range(accum):
            x, y = next(batches)
            is_accumulating = micro < accum - 1
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = model(x, y)
                fabric.backward(loss / accum)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
