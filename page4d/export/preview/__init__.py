"""Pictures of a result for people: a contact sheet of maps, and two sides of a point cloud with the cameras."""
