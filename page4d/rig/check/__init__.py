"""Checks of given cameras and clocks against evidence in pixels."""
