"""Supervised training of networks on synthetic captures and on captures with ground truth."""
