"""Numbers that a loop's caller states, or does not: what holds whichever they are is said all the same."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

GIVEN_AN_ACCELERATOR = """\
import torch

def train(args, accelerator, net, rows):
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    optimizer = torch.optim.AdamW(net.parameters())
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            loss = net(**batch).loss
            {shown}
            loss = {loss}
            accelerator.backward(loss)
            if {closes}:
                optimizer.step()
                optimizer.zero_grad()
                {reports}
"""
DIVIDED = "loss / args.gradient_accumulation_steps"
COUNTED = "(step + 1) % args.gradient_accumulation_steps == 0"


@pytest.mark.parametrize(
    ("loss", "closes", "found"),
    [
        (DIVIDED, f"{COUNTED} or step == len(loader) - 1", ["GA103"]),
        (DIVIDED, COUNTED, ["GA301"]),
        (f"{DIVIDED} / args.gradient_accumulation_steps", COUNTED, ["GA102", "GA301"]),
        # Nothing of the loop's own divides these losses, and the accelerator may.
        ("loss", f"{COUNTED} or step == len(loader) - 1", []),
        ("loss", COUNTED, ["GA301"]),
    ],
)
def test_a_loop_that_divides_by_itself_needs_no_number_of_its_accelerator(
    loss: str, closes: str, found: list[str]
) -> None:
    source = GIVEN_AN_ACCELERATOR.format(loss=loss, closes=closes, shown="pass", reports="pass")
    assert sorted(codes_in(source)) == found


def test_what_it_divided_by_itself_is_reported_too_small() -> None:
    closes = f"{COUNTED} or step == len(loader) - 1"
    show = "print(loss.item())"
    after = GIVEN_AN_ACCELERATOR.format(loss=DIVIDED, closes=closes, shown="pass", reports=show)
    before = GIVEN_AN_ACCELERATOR.format(loss=DIVIDED, closes=closes, shown=show, reports="pass")
    assert sorted(codes_in(after)) == ["GA103", "GA802"]
    assert sorted(codes_in(before)) == ["GA103"]
