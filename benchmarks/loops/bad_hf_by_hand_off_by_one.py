from accelerate import Accelerator


def main(args, model, optimizer, lr_scheduler, train_dataloader):
    accelerator = Accelerator()
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    for epoch in range(args.num_train_epochs):
        model.train()
        for step, batch in enumerate(train_dataloader):
            outputs = model(**batch)
            loss = outputs.loss
            loss = loss / args.gradient_accumulation_steps
            accelerator.backward(loss)
            if step % args.gradient_accumulation_steps == 0 or step == len(train_dataloader) - 1:
                optimizer.step()  # error: [off-by-one-window, remainder-misscaled]
                lr_scheduler.step()
                optimizer.zero_grad()
