import lightning as L
import torch


def train(fabric: L.Fabric, model, optimizer, train_iter, hparams, max_steps):
    accumulation = hparams["gradient_accumulation_steps"]
    for it in range(max_steps):
        for micro_step in range(accumulation):
            is_accumulating = micro_step == accumulation - 1
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                input_ids, targets = next(train_iter)
                logits = model(input_ids)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                fabric.backward(loss / accumulation)  # error: [unsynced-step]
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
