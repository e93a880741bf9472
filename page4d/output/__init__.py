"""The output format: writers and readers of every file of a run, independent of networks."""
