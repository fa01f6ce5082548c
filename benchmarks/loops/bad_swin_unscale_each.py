import torch


def train_one_epoch(config, model, criterion, data_loader, optimizer, epoch, mixup_fn, lr_scheduler, scaler):
    model.train()
    optimizer.zero_grad()
    num_steps = len(data_loader)
    for idx, (samples, targets) in enumerate(data_loader):
        samples, targets = samples.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        if mixup_fn is not None:
            samples, targets = mixup_fn(samples, targets)
        with torch.cuda.amp.autocast(enabled=config.AMP_ENABLE):
            outputs = model(samples)
        loss = criterion(outputs, targets)
        loss = loss / config.TRAIN.ACCUMULATION_STEPS
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # error: [scaler-every-batch]
        if (idx + 1) % config.TRAIN.ACCUMULATION_STEPS == 0:
            scaler.step(optimizer)  # error: [remainder-dropped]
            optimizer.zero_grad()
            scaler.update()
            lr_scheduler.step_update((epoch * num_steps + idx) // config.TRAIN.ACCUMULATION_STEPS)
