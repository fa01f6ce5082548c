import argparse

import deepspeed

ACCUM = 8
ds_config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": ACCUM,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def main(args):
    model = build_model(args.name)
    engine, optimizer, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=load(args), config=ds_config
    )
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            batch = {k: t.to(engine.device) for k, t in batch.items()}
            loss = engine(**batch).loss
            loss = loss / ACCUM
            engine.backward(loss)  # error: [double-loss-scaling]
            engine.step()
            if step % 50 == 0 and engine.global_rank == 0:
                print(epoch, step, loss.item() * ACCUM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="gpt2")
    parser.add_argument("--epochs", type=int, default=1)
    main(parser.parse_args())
