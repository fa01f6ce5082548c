"""The reference engine: the gradient of the true large batch, computed on CPU or CUDA from the loop's own data."""
