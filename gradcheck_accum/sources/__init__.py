"""Python sources on disk: scripts, notebooks and projects, before anything is parsed."""
