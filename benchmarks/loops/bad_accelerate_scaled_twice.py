from accelerate import Accelerator


def main(args, model, optimizer, train_dataloader):
    K = args.gradient_accumulation_steps
    accelerator = Accelerator(gradient_accumulation_steps=K)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    usable = len(train_dataloader) // K * K
    for step, batch in enumerate(train_dataloader):
        if step == usable:
            break
        loss = model(**batch).loss / K
        accelerator.backward(loss)  # error: [double-loss-scaling]
        if (step + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
