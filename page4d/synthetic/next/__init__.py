"""Temporary home of the new renderer."""
