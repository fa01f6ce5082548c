import torch
import torch.nn.functional as F
from torch.optim import AdamW


def train_embedding(pipe, dataloader, embeds, total_steps, grad_accum, lr):
    optimizer = AdamW([embeds], lr=lr)
    it = iter(dataloader)
    for step in range(total_steps):
        optimizer.zero_grad()
        logged = 0.0
        for _ in range(grad_accum):
            try:
                pixels, ids = next(it)
            except StopIteration:
                it = iter(dataloader)
                pixels, ids = next(it)
            latents = pipe.vae.encode(pixels).latent_dist.sample() * 0.18215
            noise = torch.randn_like(latents)
            t = torch.randint(0, 1000, (latents.shape[0],), device=latents.device)
            noisy = pipe.scheduler.add_noise(latents, noise, t)
            pred = pipe.unet(noisy, t, pipe.text_encoder(ids)[0]).sample
            loss = F.mse_loss(pred.float(), noise.float()) / grad_accum
            loss.backward()
            logged += loss.item()
        torch.nn.utils.clip_grad_norm_([embeds], 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(step, logged)
