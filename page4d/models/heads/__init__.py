"""Heads: cameras, dense maps and what moves, from the tokens of a trunk."""
