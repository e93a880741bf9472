"""Export of COLMAP models."""
