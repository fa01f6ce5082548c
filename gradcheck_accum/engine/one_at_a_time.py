"""Layers of PyTorch that take one sample, without a dimension for samples: this is stated by the shape that they get.

A recurrent layer takes ``(steps, features)`` for one sequence, a convolution ``(channels, *places)`` for one image. The
rows of such an input are no samples, whatever a loss over them reduces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_SEQUENCES = (
    *(nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer),
)
_KINDS = (*_SEQUENCES, nn.modules.conv._ConvNd)


def takes_one_sample(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a layer of PyTorch is called with one sample alone."""
    if not isinstance(module, _KINDS) or not type(module).__module__.startswith("torch."):
        return False
    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    if given is None:
        return False
    return given.dim() == (2 if isinstance(module, _SEQUENCES) else len(module.kernel_size) + 1)
