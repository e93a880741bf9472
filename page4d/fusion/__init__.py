"""Fusion of depth over instants and views, and its resolution."""
