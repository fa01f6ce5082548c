import itertools

import torch
import torch.nn.functional as F
from accelerate import Accelerator


def main(args):
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps, mixed_precision=args.mixed_precision
    )
    unet, text_encoder, vae, noise_scheduler = load_models(args)
    params = itertools.chain(unet.parameters(), text_encoder.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.learning_rate)
    loader = make_loader(args)
    unet, text_encoder, optimizer, loader = accelerator.prepare(unet, text_encoder, optimizer, loader)
    for epoch in range(args.num_train_epochs):
        unet.train()
        text_encoder.train()
        for step, batch in enumerate(loader):
            with accelerator.accumulate(unet):
                latents = vae.encode(batch["pixel_values"]).latent_dist.sample() * vae.config.scaling_factor
                noise = torch.randn_like(latents)
                timesteps = torch.randint(0, 1000, (latents.shape[0],), device=latents.device).long()
                noisy = noise_scheduler.add_noise(latents, noise, timesteps)
                pred = unet(noisy, timesteps, text_encoder(batch["input_ids"])[0]).sample
                pred, pred_prior = torch.chunk(pred, 2, dim=0)
                target, target_prior = torch.chunk(noise, 2, dim=0)
                loss = F.mse_loss(pred, target) + args.prior_loss_weight * F.mse_loss(pred_prior, target_prior)
                loss = loss / args.gradient_accumulation_steps
                accelerator.backward(loss)  # error: [double-loss-scaling]
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), args.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
