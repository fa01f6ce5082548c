def train(model, loader, optimizer, criterion, pgd):
    for x, y in loader:
        optimizer.zero_grad()
        clean = criterion(model(x), y)
        clean.backward()
        adv = pgd.perturb(model, x, y)
        adv_loss = criterion(model(adv), y)
        adv_loss.backward()
        optimizer.step()
