import torch
from library import Generator


def test_all_cases(cases):
    for case in cases:
        model = Generator(**case)
        loss = model(torch.ones(3)).sum()
        loss.backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        optimizer.step()
        assert model.weight.grad is not None
