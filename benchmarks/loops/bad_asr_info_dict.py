import logging

import torch
from torch.nn.utils import clip_grad_norm_


def batch_forward(model, batch, scaler, info_dict):
    with torch.cuda.amp.autocast(scaler is not None):
        info_dict["loss_dict"] = model(batch, info_dict["device"])
    return info_dict


def batch_backward(model, scaler, info_dict):
    if info_dict["train_engine"] == "deepspeed":
        scaled_loss = model.backward(info_dict["loss_dict"]["loss"])
    else:
        scaled_loss = info_dict["loss_dict"]["loss"] / info_dict["accum_grad"]
        if scaler is not None:
            scaler.scale(scaled_loss).backward()
        else:
            scaled_loss.backward()
    info_dict["loss_dict"]["loss"] = scaled_loss
    return info_dict


def update_parameter_and_lr(model, optimizer, scheduler, scaler, info_dict):
    grad_norm = 0.0
    if info_dict["train_engine"] == "deepspeed":
        model.step()
        grad_norm = model.get_global_grad_norm()
    elif (info_dict["batch_idx"] + 1) % info_dict["accum_grad"] == 0:
        if scaler is not None:
            scaler.unscale_(optimizer)
            grad_norm = clip_grad_norm_(model.parameters(), info_dict["grad_clip"])
            if torch.isfinite(grad_norm):
                scaler.step(optimizer)  # error: [remainder-dropped]
            scaler.update()
        else:
            grad_norm = clip_grad_norm_(model.parameters(), info_dict["grad_clip"])
            if torch.isfinite(grad_norm):
                optimizer.step()  # error: [remainder-dropped]
        optimizer.zero_grad()
        scheduler.step()
    info_dict["grad_norm"] = grad_norm
    return info_dict


class Executor:
    def train_one_epoch(self, model, optimizer, scheduler, loader, info_dict, scaler):
        model.train()
        for batch_idx, batch in enumerate(loader):
            info_dict["batch_idx"] = batch_idx
            info_dict = batch_forward(model, batch, scaler, info_dict)
            info_dict = batch_backward(model, scaler, info_dict)
            info_dict = update_parameter_and_lr(model, optimizer, scheduler, scaler, info_dict)
            logging.info("%d %s", batch_idx, info_dict["grad_norm"])
