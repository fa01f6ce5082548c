"""What one file comes to: its source, every scenario of its loops, what all scenarios agree on, and the outcome."""
