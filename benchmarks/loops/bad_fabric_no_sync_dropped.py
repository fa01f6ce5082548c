import lightning as L
import torch


def train(fabric: L.Fabric, model, optimizer, dataloader, accumulate_every: int = 8):
    for epoch in range(10):
        for i, batch in enumerate(dataloader):
            is_accumulating = (i + 1) % accumulate_every != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = model(batch)
                fabric.backward(loss / accumulate_every)
            if not is_accumulating:
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()


def main():
    fabric = L.Fabric(accelerator="auto", devices=2)
    fabric.launch()
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = fabric.setup(model, optimizer)
    train(fabric, model, optimizer, fabric.setup_dataloaders(loader()))
