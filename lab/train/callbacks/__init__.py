"""Lightning callbacks: counting, probing, checkpoints, records and signals."""
