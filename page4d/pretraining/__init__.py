"""Learning of encoders from images alone, without truth."""
