"""page4d: synchronized videos in, a 4D reconstruction out."""

__version__ = "0.1.0"
