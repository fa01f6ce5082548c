import deepspeed

ds_config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}


def run(model, loader):
    model_engine, _, _, _ = deepspeed.initialize(model=model, config=ds_config)
    for batch in loader:
        out = model_engine(**batch)
        loss = out.loss / ds_config["gradient_accumulation_steps"]
        model_engine.backward(loss)  # error: [double-loss-scaling]
        model_engine.step()
