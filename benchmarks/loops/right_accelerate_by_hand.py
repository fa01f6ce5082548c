from accelerate import Accelerator


def main(args, model, optimizer, train_dataloader):
    accelerator = Accelerator(mixed_precision="bf16")
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    K = args.gradient_accumulation_steps
    usable = len(train_dataloader) // K * K
    for step, batch in enumerate(train_dataloader):
        if step >= usable:
            break
        loss = model(**batch).loss / K
        accelerator.backward(loss)
        if (step + 1) % K == 0:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
