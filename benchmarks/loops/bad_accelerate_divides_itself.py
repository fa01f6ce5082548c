import torch
from accelerate import Accelerator

ACCUM = 8


def run(model, dataset):
    accelerator = Accelerator(gradient_accumulation_steps=ACCUM)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            loss = loss / ACCUM
            accelerator.backward(loss)  # error: [double-loss-scaling]
            optimizer.step()
            optimizer.zero_grad()
