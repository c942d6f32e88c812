"""Evaluation: probes and pictures; a model is known only through `lab.probe.interfaces`."""
