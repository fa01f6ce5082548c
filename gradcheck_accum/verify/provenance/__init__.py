"""What the source has for the numbers of a run: where a divisor comes from, and what decides on a step.

Read off the syntax of the frames on the stack, once for every place and those that call it; nothing of the user's is
run for it.
"""
