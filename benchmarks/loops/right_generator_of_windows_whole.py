import torch


def whole_windows(loader, k):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) < k:
            continue
        yield window
        window = []


def train(model, loader, opt, k=4):
    for window in whole_windows(loader, k):
        opt.zero_grad()
        for batch in window:
            (model(**batch).loss / k).backward()
        opt.step()
