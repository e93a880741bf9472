"""Batches of scenes, in a local process or on a Ray cluster; a scene that fails does not stop the others."""
