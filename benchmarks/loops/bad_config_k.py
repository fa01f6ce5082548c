import yaml


def main(model, loader, optimizer, criterion):
    with open("config.yaml") as f:
        cfg = yaml.safe_load(f)
    for epoch in range(cfg["train"]["epochs"]):
        for it, (x, y) in enumerate(loader):
            loss = criterion(model(x), y) / cfg["train"]["grad_accum"]
            loss.backward()
            if (it + 1) % cfg["train"]["grad_accum"] == 0 or it == len(loader) - 1:
                optimizer.step()  # error: [remainder-misscaled]
                optimizer.zero_grad()
