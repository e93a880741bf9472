"""Attention, rotary positions, feed-forward, patch embedding and the block made of them; cameras are unknown here."""
