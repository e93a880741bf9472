"""Captures: what a folder holds, when each frame was taken, which pixels a network sees."""
