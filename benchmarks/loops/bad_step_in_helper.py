# A Trainer that I wrote before Trainer classes were common.
import torch


def update(optimizer):
    optimizer.step()  # error: [remainder-dropped]
    optimizer.zero_grad()


def main():
    model = torch.nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = torch.nn.CrossEntropyLoss()
    for i, (x, y) in enumerate(get_loader()):
        loss = loss_fn(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % 8 == 0:
            update(optimizer)


if __name__ == "__main__":
    main()
