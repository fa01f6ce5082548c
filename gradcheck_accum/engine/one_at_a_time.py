"""Layers of PyTorch that take one sample, without a dimension for samples: this is stated by the shape that they get.

A recurrent layer takes ``(steps, features)`` for one sequence, a convolution ``(channels, *places)`` for one image. The
rows of such an input are no samples, whatever a loss over them reduces. But where they were cut out of the rows of a
larger table, or stacked by a data loader, they may be samples that the layer was given for one.

A linear layer takes a vector for one sample, which has no rows: a model that was given nothing else, and whose linear
layers all took vectors, ran on one sample. What only some of them take may have been reduced from the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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


def dimensions_of(module: nn.Module, args: Any) -> int | None:
    """How many dimensions the input of a linear layer has; None for any other module."""
    if not isinstance(module, nn.Linear) or not args or not isinstance(args[0], torch.Tensor):
        return None
    with torch._C.DisableTorchFunction():
        return args[0].dim()


def takes_vectors(given: Iterable[torch.Tensor], dimensions: Collection[int]) -> bool:
    """Whether a model was ``given`` vectors alone, and its linear layers inputs of the ``dimensions`` of a vector."""
    return {*dimensions} == {1} and all(tensor.dim() < 2 for tensor in given)


def are_rows_of_another(tensor: torch.Tensor) -> bool:
    """Whether numbers are some of the rows of a larger table, and not one of the items of a tensor that stacks several.

    A slice keeps the dimensions of what it was taken from, and an index does not.
    """
    return tensor.dim() > 1 and tensor.is_floating_point() and are_some_rows(tensor)


def are_some_rows(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a slice of the rows of another one."""
    whole = tensor._base
    if whole is None or not tensor.dim() == whole.dim() > 0:
        return False
    return tensor.shape[1:] == whole.shape[1:] and len(tensor) < len(whole)
