"""Transformer layers: attention, rotary positions, feed-forward, patch embedding and blocks."""
