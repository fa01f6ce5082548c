import argparse

import lightning as L
import torch.optim as optim
from tqdm import tqdm


def distill(args, model, train_loader):
    fabric = L.Fabric(accelerator="cuda", devices=args.devices, strategy="ddp")
    fabric.launch()
    train_loader = fabric.setup_dataloaders(train_loader)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=5e-2)
    model, optimizer = fabric.setup(model, optimizer)
    for epoch in range(args.epochs):
        running = 0.0
        for i, (img, label) in enumerate(tqdm(train_loader)):
            is_accumulating = (i + 1) % args.accumulations != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = model(img, img)
                running += loss.detach().item()
                fabric.backward(loss)  # error: [missing-loss-scaling, unsynced-step]
            if not is_accumulating or (i + 1) == len(train_loader):
                optimizer.step()
                optimizer.zero_grad()
        print(epoch, running / len(train_loader))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulations", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--devices", type=int, default=2)
    distill(parser.parse_args(), make_model(), make_loader())
