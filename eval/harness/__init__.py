"""Tasks of lm-evaluation-harness on the lab's models."""
