"""Plots of an evaluation: error maps, errors over time, cameras from above and sparsification curves."""
