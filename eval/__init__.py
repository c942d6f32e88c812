"""Evaluation: probes and pictures of trained models, which `eval.engine.subject` opens."""

import lab  # noqa: F401  first, because it rejects a system that the others cannot be imported on
