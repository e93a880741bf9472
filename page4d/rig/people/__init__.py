"""Body keypoints in videos: the optional pose model, its detections, and their tracklets."""
