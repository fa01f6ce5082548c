import torch


def train(model, loader, val_loader, optimizer, criterion, eval_every, save_every):
    step = 0
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % eval_every == 0:
                with torch.no_grad():
                    losses = [criterion(model(a), b).item() for a, b in val_loader]
                print(sum(losses) / len(losses))
            if step % save_every == 0:
                torch.save(model.state_dict(), f"{step}.pt")
