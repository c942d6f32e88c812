"""The reader of trained weights: a run folder, a checkpoint in it, or a Hugging Face folder."""
