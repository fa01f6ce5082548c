import lightning as L
import torch


class GRPO(L.LightningModule):
    def __init__(self, policy, ref_model, beta_kl=0.04, lr=1e-6):
        super().__init__()
        self.automatic_optimization = False
        self.policy, self.ref_model = policy, ref_model
        self.beta_kl, self.lr = beta_kl, lr

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        active = [(r, a) for r, a in zip(batch["records"], batch["advantages"]) if abs(a) >= 1e-8]
        if active:
            for rec, adv in active:
                logp, valid = token_logprobs(self.policy, rec)
                denom = valid.sum().clamp(min=1)
                loss = -(adv * (logp * valid).sum() / denom)
                with torch.no_grad():
                    ref, _ = token_logprobs(self.ref_model, rec)
                delta = ref - logp
                kl = torch.exp(delta) - delta - 1.0
                loss = loss + self.beta_kl * (kl * valid).sum() / denom
                self.manual_backward(loss / len(active))
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            opt.step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.policy.parameters(), lr=self.lr)
