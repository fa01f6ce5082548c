"""Watches a running loop: what PyTorch does for it becomes events, and its losses are read as they come."""
