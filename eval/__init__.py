"""Evaluation: probes and pictures; a model is known only through `eval.protocol`."""
