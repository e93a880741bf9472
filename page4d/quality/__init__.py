"""Quality of a result without ground truth: agreement between views, steadiness, photo-consistency, and a grade."""
