import math
import sys


def train_one_epoch(model, data_loader, optimizer, loss_scaler, log_writer, args):
    accum_iter = args.accum_iter
    assert len(data_loader) % accum_iter == 0
    optimizer.zero_grad()
    for data_iter_step, (samples, _) in enumerate(data_loader):
        if data_iter_step % accum_iter == 0:
            adjust_learning_rate(optimizer, data_iter_step / len(data_loader), args)
        loss, _, _ = model(samples, mask_ratio=args.mask_ratio)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            sys.exit(1)
        loss /= accum_iter
        loss_scaler(
            loss, optimizer, parameters=model.parameters(), update_grad=(data_iter_step + 1) % accum_iter == 0
        )
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()


def adjust_learning_rate(optimizer, epoch, args):
    for group in optimizer.param_groups:
        group["lr"] = args.lr * epoch
