"""Messages on a run that was stopped before its end."""

INTERRUPTED = "interrupted"
"""The error of a run that was interrupted."""

STOPPED = "stopped before the script ended: the report covers what was seen until then"
"""The note on a run that was stopped by the user or its time limit."""

NOTHING_SEEN = "interrupted before anything was seen"
"""The error of a run that was interrupted before the script began, or that could no longer report."""
