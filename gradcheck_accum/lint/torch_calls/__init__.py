"""What the calls of PyTorch, and operations on its tensors, do to losses, gradients, batches and weights."""
