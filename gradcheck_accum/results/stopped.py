"""Messages on a run that was stopped before its end."""

INTERRUPTED = "interrupted"
"""The error of a run that somebody interrupted."""

STOPPED = "stopped before the script ended: the report covers what was seen until then"
"""The note on a run that somebody, or its time limit, has stopped."""

NOTHING_SEEN = "interrupted before anything was seen"
"""The error of a run that somebody interrupted before the script began, or that could not report any more."""
