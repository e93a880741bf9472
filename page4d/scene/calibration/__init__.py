"""Readers of camera calibrations: one file a format, one record for all."""
