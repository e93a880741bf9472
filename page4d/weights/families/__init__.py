"""Families of published checkpoints: one module per architecture, and the table of all of them."""
