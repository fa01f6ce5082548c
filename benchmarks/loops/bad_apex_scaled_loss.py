import torch
from apex import amp


def fit(model, loader, optimizer, steps, use_amp):
    for _ in range(3):
        model.zero_grad()
        for number, batch in enumerate(loader):
            loss = model(**batch)[0] / steps
            if use_amp:
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
            else:
                loss.backward()
            if (number + 1) % steps == 0 or number + 1 == len(loader):
                parameters = amp.master_params(optimizer) if use_amp else model.parameters()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()  # error: [remainder-misscaled]
                model.zero_grad()
