import torch


class MultiTask:
    def __init__(self, backbone, heads, cfg):
        self.backbone, self.heads, self.cfg = backbone, heads, cfg
        self.opt_body = torch.optim.AdamW(backbone.parameters(), lr=cfg.lr_body)
        self.opt_heads = torch.optim.AdamW(heads.parameters(), lr=cfg.lr_heads)
        self.iters = 0

    def optimizers(self):
        return [self.opt_body, self.opt_heads]

    def train(self, stream):
        for batch in stream:
            feats = self.backbone(batch["x"])
            loss = torch.nn.functional.cross_entropy(self.heads(feats), batch["y"])
            (loss / self.cfg.accumulate).backward()
            self.iters += 1
            if self.iters % self.cfg.accumulate == 0:
                for opt in self.optimizers():
                    opt.step()
                for opt in self.optimizers():
                    opt.zero_grad()
