from lightning.fabric import Fabric


def fit(settings, devices, model, optimizer, loader, max_steps):
    fabric = Fabric(devices=devices)
    model, optimizer = fabric.setup(model, optimizer)
    iteration = 0
    steps = 0
    data = iter(loader)
    while steps < max_steps:
        iteration += 1
        batch = next(data)
        is_accumulating = iteration % settings.gradient_accumulation_iters(devices) != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = model(batch).loss
            fabric.backward(loss)  # error: [missing-loss-scaling]
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
