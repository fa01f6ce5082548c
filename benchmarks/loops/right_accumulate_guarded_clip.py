def train(accelerator, model, optimizer, scheduler, loader, resume_step, args):
    for step, batch in enumerate(loader):
        if step < resume_step:
            if step % args.gradient_accumulation_steps == 0:
                print("skipped a window")
            continue
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
