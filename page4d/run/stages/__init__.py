"""Stages of a run, each with its state."""
