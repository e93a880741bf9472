"""Preview pictures of an output: a contact sheet of maps, and two views of a point cloud with its cameras."""
