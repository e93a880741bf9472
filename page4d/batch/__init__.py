"""Many scenes, and many devices: a batch in which one failure stops nothing else, here or on a Ray cluster."""
