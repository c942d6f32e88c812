"""Evaluation: probes and pictures; a model is known only through `lab.probe.answering`."""

import lab  # noqa: F401  first, as it answers Ctrl-C during the imports that follow
