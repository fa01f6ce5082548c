import torch
import torch.nn as nn

GRADIENT_ACCUMULATION_STEPS = 4
LATENT = 128

generator = nn.Sequential(nn.Linear(LATENT, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
adversarial_loss = nn.BCEWithLogitsLoss()

for epoch in range(100):
    for i, (imgs, _) in enumerate(dataloader):
        real = imgs.view(imgs.size(0), -1).cuda()
        valid = torch.ones(real.size(0), 1, device=real.device)
        fake = torch.zeros(real.size(0), 1, device=real.device)

        z = torch.randn(real.size(0), LATENT, device=real.device)
        gen = generator(z)
        d_loss = (adversarial_loss(discriminator(real), valid) + adversarial_loss(discriminator(gen.detach()), fake)) / 2
        d_loss = d_loss / GRADIENT_ACCUMULATION_STEPS
        d_loss.backward()
        if (i + 1) % GRADIENT_ACCUMULATION_STEPS == 0:
            optimizer_D.step()  # error: [remainder-dropped]
            optimizer_D.zero_grad()

        for p in discriminator.parameters():
            p.requires_grad_(False)
        g_loss = adversarial_loss(discriminator(gen), valid) / GRADIENT_ACCUMULATION_STEPS
        g_loss.backward()
        for p in discriminator.parameters():
            p.requires_grad_(True)
        if (i + 1) % GRADIENT_ACCUMULATION_STEPS == 0:
            optimizer_G.step()  # error: [remainder-dropped]
            optimizer_G.zero_grad()
