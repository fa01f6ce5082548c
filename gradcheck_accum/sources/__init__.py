"""Python sources as they lie on a disk: scripts, notebooks and projects, before anything of them is parsed."""
