"""Plans for the shape of the position frequency."""
