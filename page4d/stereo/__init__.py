"""Refinement of cameras and depth: bundle adjustment and multi-view stereo."""
