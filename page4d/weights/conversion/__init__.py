"""Conversion of published checkpoints: key maps, blueprints, accounting of every tensor, and the converted file."""
