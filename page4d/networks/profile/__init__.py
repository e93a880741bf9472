"""Shapes, parameters, floating point operations (FLOPs) and memory of networks."""
