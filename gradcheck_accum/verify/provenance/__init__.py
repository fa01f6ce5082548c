"""Finds the source of the numbers of a run: where a divisor comes from, and what decides on a step.

Read from the syntax of the frames on the stack, once for every place and its callers; no user code is run for it.
"""
