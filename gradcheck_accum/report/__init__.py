"""Reports for people and programs. They take values and return strings, and import neither engine."""
