"""Evaluation against ground truth: depth, cameras, points, masks and confidence, by published definitions."""
