"""Rotations, rigid and similarity transforms, cameras, distortion and registration, as batched torch functions."""
