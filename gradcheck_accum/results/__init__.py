"""What `lint`, `verify`, `compare` and `fuzz` pass to reports.

Values that depend on no engine, and what the user has accepted of them.
"""
