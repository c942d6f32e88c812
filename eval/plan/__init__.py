"""The planner: position frequency of a corpus, and the reach to expect of it."""
