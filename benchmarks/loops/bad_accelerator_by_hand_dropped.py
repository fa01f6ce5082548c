def train(args, accelerator, model, optimizer, loader):
    for _ in range(args.epochs):
        optimizer.zero_grad()
        for step, batch in enumerate(loader, start=1):
            accelerator.backward(model(**batch).loss / args.accum_steps)
            if step % args.accum_steps == 0:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
