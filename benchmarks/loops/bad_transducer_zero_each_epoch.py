import torch


def train_epoch(params, model, optimizer, train_dl):
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for batch in train_dl:
        params["batch_idx_train"] += 1
        loss = model(batch["inputs"], batch["supervisions"]["text"])
        (loss / params["accum_grads"]).backward()
        total += loss.item()
        if params["batch_idx_train"] % params["accum_grads"] == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()  # error: [remainder-dropped, remainder-misscaled]
            optimizer.zero_grad()
    return total / len(train_dl)


def main(params, model, train_dl):
    params["batch_idx_train"] = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
    for epoch in range(params["num_epochs"]):
        print(epoch, train_epoch(params, model, optimizer, train_dl))
