"""The gradient ledger: from a loop's events to the weight of every micro-batch.

Both engines emit its events and read its weights, so a loop means the same to both. Imports neither engine.
"""
