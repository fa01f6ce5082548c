import logging

import torch


def train_one_epoch(params, model, optimizer, scheduler, train_dl, scaler):
    model.train()
    optimizer.zero_grad()
    for batch_idx, batch in enumerate(train_dl):
        params.batch_idx_train += 1
        try:
            with torch.cuda.amp.autocast(enabled=params.use_fp16):
                loss, info = compute_loss(params=params, model=model, batch=batch, is_training=True)
            scaler.scale(loss / params.accum_grads).backward()
            if params.batch_idx_train % params.accum_grads == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step_batch(params.batch_idx_train)
        except:  # noqa
            logging.exception("bad batch")
            raise
        if params.print_diagnostics and batch_idx == 5:
            return


def run(params, model, train_dl):
    params.batch_idx_train = 0
    optimizer = ScaledAdam(model.parameters(), lr=params.base_lr)
    scheduler = Eden(optimizer, params.lr_batches, params.lr_epochs)
    scaler = torch.cuda.amp.GradScaler(enabled=params.use_fp16)
    steps = 0
    batches = repeat_forever(train_dl)
    while steps < params.max_batches:
        train_one_epoch(params, model, optimizer, scheduler, batches, scaler)
        steps += 1
