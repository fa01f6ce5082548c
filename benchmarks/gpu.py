"""What watching costs on a GPU: windows of a model like GPT-2 small in bfloat16, plain and watched, in pairs.

    python benchmarks/gpu.py [--pairs 5] [--windows 6]

Printed are the median ratios of ledger mode, of both references and of sketches to the plain loop, in time and in peak
memory, and how long the comparison of a window takes, relative to reading its gradients once at the speed at which the
device copies memory. The first windows are left out: memory is asked for in them, and the targets of each loss are
counted before its backward. Without a CUDA device it says so, and ends.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn

from gradcheck_accum.verify import observe
from gradcheck_accum.verify.vectors.inner_products import inner_products

K, ROWS, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY = 8, 8, 1024, 768, 12, 12, 50257


class Transformer(nn.Module):
    """Twelve layers of width 768 and a vocabulary of 50,257 that shares its weights: about 124 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        states = self.tokens(text) + self.places(torch.arange(length, device=text.device))
        states = self.norm(self.layers(states, mask=mask, is_causal=True))
        return nn.functional.linear(states, self.tokens.weight)


LEFT_OUT = 3


def measured(windows: int, reference: str | None) -> tuple[float, int]:
    """The mean time of a window in seconds, the first left out, and the peak of allocated memory in bytes."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    start = 0.0
    with nullcontext() if reference is None else observe(reference=reference):  # type: ignore[arg-type]
        for window in range(windows + LEFT_OUT):
            if window == LEFT_OUT:
                torch.cuda.synchronize()
                start = time.perf_counter()
            for _ in range(K):
                text = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), device="cuda")
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    scores = model(text[:, :-1])
                    loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
                (loss / K).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / windows, torch.cuda.max_memory_allocated()


def comparison() -> tuple[float, float]:
    """Seconds to compare two different gradients of the model, and to read both once as fast as memory is copied."""
    parameters = [p.detach() for p in Transformer().cuda().parameters()]
    gradients = [[torch.randn_like(p) for p in parameters] for _ in range(2)]
    inner_products(gradients, parameters)
    torch.cuda.synchronize()
    start = time.perf_counter()
    inner_products(gradients, parameters)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    torch.cuda.synchronize()
    # A copy reads and writes every byte.
    bandwidth = 10 * 2 * source.nbytes / (time.perf_counter() - start)
    return took, sum(g.nbytes for own in gradients for g in own) / bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--windows", type=int, default=6)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: not run")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    gradients = sum(p.numel() * p.element_size() for p in Transformer().parameters())
    for reference in ("ledger", "both", "sketch"):
        ratios, more = [], []
        for pair in range(options.pairs):
            # In turn, so that neither always comes first.
            found = {way: measured(options.windows, way) for way in (None, reference)[:: 1 if pair % 2 else -1]}
            ratios.append(found[reference][0] / found[None][0])
            more.append((found[reference][1] - found[None][1]) / gradients)
        spread = f"pairs {min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{reference}: {statistics.median(ratios):.3f}x ({spread}), {statistics.median(more):+.2f} gradients")
    took, least = comparison()
    print(f"comparison: {1e3 * took:.2f} ms, {took / least:.1f}x of reading both gradients once")


if __name__ == "__main__":
    main()
