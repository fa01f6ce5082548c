"""Gradients as vectors: their inner products, their sketches, and each rank's part of them."""
