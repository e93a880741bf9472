"""Prediction heads: cameras, dense maps and motion masks from trunk tokens."""
