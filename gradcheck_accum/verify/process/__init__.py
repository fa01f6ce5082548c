"""A script in a process of its own: the process that starts it, and the one that runs it."""
