"""The gradient ledger: from what a loop does to what every micro-batch weighs.

Both engines write the events that it is made of, and both read the weights: one loop means one thing. Knows neither
engine.
"""
