"""Folders that trainers of 4D Gaussians read."""
