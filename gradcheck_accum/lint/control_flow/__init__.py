"""How control moves: branches taken, functions called, and what a program refuses to run with."""
