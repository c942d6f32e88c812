"""What a run will hold, compute and write, found before it runs, on any machine."""
