def train(model, stream, optimizer, criterion, bptt):
    hidden = None
    for x, y in stream:
        out, hidden = model(x, hidden)
        hidden = hidden.detach()
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
