"""Conversion of published checkpoints: key maps, recipes, accounting of every tensor, and the converted file."""
