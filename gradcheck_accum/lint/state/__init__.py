"""What is known while a loop is interpreted.

The values of variables, the numbers that the source leaves open, the record of what was done, and the ways in which
control leaves a statement before its end.
"""
