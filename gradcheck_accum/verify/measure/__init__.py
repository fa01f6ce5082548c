"""Measures one step: its gradient and its update, each compared with its references."""
