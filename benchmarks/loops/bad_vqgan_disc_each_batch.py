import torch
import torch.nn.functional as F


def train_vqgan(vqgan, disc, loader, cfg):
    opt_ae = torch.optim.Adam(vqgan.parameters(), lr=cfg.lr, betas=(0.5, 0.9))
    opt_disc = torch.optim.Adam(disc.parameters(), lr=cfg.lr, betas=(0.5, 0.9))
    accum = cfg.accumulate_grad_batches
    data = iter(cycle(loader))
    step = 0
    while step < cfg.max_steps:
        for micro in range(accum):
            x = next(data).to(cfg.device)
            rec, codebook_loss, _ = vqgan(x)
            ae_loss = F.l1_loss(rec, x) + codebook_loss
            (ae_loss / accum).backward()

            real_logits = disc(x)
            fake_logits = disc(rec.detach())
            d_loss = 0.5 * (F.relu(1.0 - real_logits).mean() + F.relu(1.0 + fake_logits).mean())
            (d_loss / accum).backward()
            opt_disc.step()  # error: [step-every-batch]
            opt_disc.zero_grad()
        opt_ae.step()
        opt_ae.zero_grad()
        step += 1
