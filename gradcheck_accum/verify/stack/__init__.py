"""The stack of the watched program: which of its lines are the user's, and how it looks without ours."""
