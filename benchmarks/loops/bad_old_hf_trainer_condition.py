def train(args, model, train_dataloader, optimizer, scheduler):
    steps_trained = 0
    model.zero_grad()
    for epoch in range(int(args.num_train_epochs)):
        for step, inputs in enumerate(train_dataloader):
            outputs = model(**inputs)
            loss = outputs[0]
            if args.n_gpu > 1:
                loss = loss.mean()
            if args.gradient_accumulation_steps > 1:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            if (step + 1) % args.gradient_accumulation_steps == 0 or (
                len(train_dataloader) <= args.gradient_accumulation_steps and (step + 1) == len(train_dataloader)
            ):
                optimizer.step()  # error: [remainder-dropped]
                scheduler.step()
                model.zero_grad()
                steps_trained += 1
