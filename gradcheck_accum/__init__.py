"""Correctness verification and linting for gradient accumulation in PyTorch."""

__version__ = "0.1.0"
