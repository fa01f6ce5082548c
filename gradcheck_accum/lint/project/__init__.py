"""A run over a project: which files, what is known from earlier runs, baselines, and comments written into files."""
