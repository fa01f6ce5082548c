import torch
from torch import nn

netG, netD = Generator(), Discriminator()
optG = torch.optim.Adam(netG.parameters(), lr=2e-4)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4)
bce = nn.BCELoss()

for epoch in range(opt.n_epochs):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1.0, device=device)
        errD_real = bce(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), 100, 1, 1, device=device))
        label.fill_(0.0)
        errD_fake = bce(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optD.step()

        if i % opt.n_critic == 0:
            netG.zero_grad()
            label.fill_(1.0)
            errG = bce(netD(fake).view(-1), label)
            errG.backward()
            optG.step()
        if i % 50 == 0:
            print(errD_real.item() + errD_fake.item(), errG.item())
