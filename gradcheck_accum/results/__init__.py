"""What `lint`, `verify`, `compare` and `fuzz` hand to reports.

Values that know no engine, and what of them the owner of a loop has accepted.
"""
