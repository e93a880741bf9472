"""Training of networks: the engine, supervised training, and validation on held-out scenes."""
