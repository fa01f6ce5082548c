def train(model, device, train_loader, optimizer, criterion, epoch, gradient_accumulation_steps):
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()  # error: [zero-grad-every-batch]
        output = model(data)
        loss = criterion(output, target) / gradient_accumulation_steps
        loss.backward()
        if (batch_idx + 1) % gradient_accumulation_steps == 0 or batch_idx + 1 == len(train_loader):
            optimizer.step()  # error: [remainder-misscaled]
