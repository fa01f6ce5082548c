import lightning as L
import torch


def train(fabric, state, train_data, gradient_accumulation_iters, max_iters, log_interval, grad_clip):
    model, optimizer = state["model"], state["optimizer"]
    while state["iter_num"] < max_iters:
        state["iter_num"] += 1
        ids, targets = get_batch(fabric, train_data)
        is_accumulating = state["iter_num"] % gradient_accumulation_iters != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(ids)
            loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
            fabric.backward(loss / gradient_accumulation_iters)
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            state["step_count"] += 1
        if state["iter_num"] % log_interval == 0:
            fabric.print(loss.item())
