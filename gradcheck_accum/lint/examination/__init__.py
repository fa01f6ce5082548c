"""Examines one file: its source, every scenario of its loops, what all scenarios agree on, and the outcome."""
