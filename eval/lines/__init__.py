"""Line retrieval by the length of the record."""
