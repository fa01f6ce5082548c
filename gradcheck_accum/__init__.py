"""Correctness verification and linting for gradient accumulation in PyTorch."""

__version__ = "0.1.0"

DEBUG_VARIABLE = "GRADCHECK_ACCUM_DEBUG"
"""Set in the environment, it lets errors of ours out with their tracebacks."""
