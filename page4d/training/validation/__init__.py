"""Validation on held-out synthetic scenes."""
