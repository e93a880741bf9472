"""The command line of page4d."""
