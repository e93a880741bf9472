"""How far a result is from the truth: depth, cameras, points, masks and confidence, by published definitions."""
