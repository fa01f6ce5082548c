import logging
from contextlib import nullcontext

import torch
from torch.nn.utils import clip_grad_norm_


class Executor:
    def __init__(self):
        self.step = 0

    def train(self, model, optimizer, scheduler, data_loader, device, args):
        model.train()
        clip = args.get("grad_clip", 50.0)
        accum_grad = args.get("accum_grad", 1)
        is_distributed = args.get("is_distributed", True)
        seen = 0
        for batch_idx, batch in enumerate(data_loader):
            key, feats, target, feats_lengths, target_lengths = batch
            feats, target = feats.to(device), target.to(device)
            if target_lengths.size(0) == 0:
                continue
            if is_distributed and batch_idx % accum_grad != 0:
                context = model.no_sync
            else:
                context = nullcontext
            with context():
                loss, loss_att, loss_ctc = model(feats, feats_lengths, target, target_lengths)
                loss = loss / accum_grad
                loss.backward()
            seen += target_lengths.size(0)
            if batch_idx % accum_grad == 0:
                grad_norm = clip_grad_norm_(model.parameters(), clip)
                if torch.isfinite(grad_norm):
                    optimizer.step()  # error: [off-by-one-window, remainder-dropped]
                optimizer.zero_grad()
                scheduler.step()
                self.step += 1
            logging.debug("loss %f", loss.item() * accum_grad)
