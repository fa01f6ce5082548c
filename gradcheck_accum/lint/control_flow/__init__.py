"""Control flow: branches, function calls, and what a program refuses to run with."""
