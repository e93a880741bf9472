"""Shapes, parameters, work and memory of networks."""
