"""Runs of several ranks: how each is watched, and how what they saw comes together."""
