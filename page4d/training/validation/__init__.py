"""Validation of networks on held-out synthetic scenes."""
