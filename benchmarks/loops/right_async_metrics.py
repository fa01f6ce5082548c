async def train(model, feed, optimizer, criterion):
    async for x, y in feed:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
