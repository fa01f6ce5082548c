import itertools

import torch
import torch.nn.functional as F
from accelerate import Accelerator


def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    unet, text_encoder = load(args)
    params = itertools.chain(unet.parameters(), text_encoder.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.learning_rate)
    unet, text_encoder, optimizer, loader, lr_scheduler = accelerator.prepare(unet, text_encoder, optimizer, make(args), sched(args))
    global_step = 0
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            with accelerator.accumulate(unet, text_encoder):
                noise = torch.randn_like(batch["latents"])
                states = text_encoder(batch["ids"])[0]
                pred = unet(batch["latents"] + noise, states).sample
                loss = F.mse_loss(pred.float(), noise.float(), reduction="mean")
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    clipped = itertools.chain(unet.parameters(), text_encoder.parameters())
                    accelerator.clip_grad_norm_(clipped, args.max_grad_norm)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                global_step += 1
