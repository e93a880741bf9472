"""Viewer of a run in a browser: live from a local server, or recorded as one HTML page."""
