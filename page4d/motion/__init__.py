"""Motion of points: scene flow of a rig from dense optical flow of its views, velocities and tracks."""
