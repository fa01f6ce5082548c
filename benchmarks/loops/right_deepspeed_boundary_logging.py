import deepspeed
from torch.utils.tensorboard import SummaryWriter

CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}


def pretrain(net, corpus, epochs):
    writer = SummaryWriter()
    model, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=CONFIG)
    global_step = 0
    window_loss = 0.0
    for epoch in range(epochs):
        for input_ids, mask, labels in corpus:
            logits = model(input_ids, attention_mask=mask)
            loss = criterion(logits, labels)
            window_loss += loss.item()
            model.backward(loss)
            if model.is_gradient_accumulation_boundary():
                for group in optimizer.param_groups:
                    group["lr"] = lr_at(global_step)
                model.step()
                writer.add_scalar("loss", window_loss / model.gradient_accumulation_steps(), global_step)
                window_loss = 0.0
                global_step += 1
            else:
                model.step()
