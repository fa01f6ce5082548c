from accelerate import Accelerator


def main(args, model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=args.steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss / args.steps
            accelerator.backward(loss)  # error: [double-loss-scaling]
            optimizer.step()
            optimizer.zero_grad()
