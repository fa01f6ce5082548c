def train(model, loader, optimizer, cfg, K):
    optimizer.zero_grad()
    for i, (image, mask, label) in enumerate(loader):
        segmented, classified = model(image)
        loss = cfg.mask_weight * dice_loss(segmented, mask) + cfg.label_weight * label_loss(classified, label)
        loss = loss / K
        loss.backward()
        if (i + 1) % K == 0 or i == len(loader) - 1:
            optimizer.step()  # error: [remainder-misscaled]
            optimizer.zero_grad()
