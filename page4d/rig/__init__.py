"""Cameras of a rig from evidence in pixels: motion of cameras, registration, checks of calibrations, clocks."""
