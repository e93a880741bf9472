"""Scenes: discovery and decoding of views, synchronization, calibration, and network input batches."""
