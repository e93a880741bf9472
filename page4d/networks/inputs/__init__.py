"""Explicit inputs of the trunk: matches, rays, triangulation, epipolar prior."""
