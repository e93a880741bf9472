"""People as evidence: the optional pose model, keypoints and tracklets, pairs of views, and body height."""
