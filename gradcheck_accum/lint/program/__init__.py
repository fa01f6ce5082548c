"""What a program shows by its syntax alone, before anything of it is interpreted.

The facts of each module, which functions and classes reach gradients, and the other modules of a project that its
training runs on into.
"""
