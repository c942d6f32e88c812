"""Evaluation: probes and pictures of trained models, which `eval.engine.subject` opens."""

import lab  # noqa: F401  first, as it answers Ctrl-C during the imports that follow
