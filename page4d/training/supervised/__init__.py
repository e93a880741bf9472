"""Supervised training of networks."""
