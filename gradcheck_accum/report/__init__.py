"""What people and programs get to read. Reports take values and return strings; they know neither engine."""
