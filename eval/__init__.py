"""Evaluation: probes and pictures; a model is known only through `lab.probe.interfaces`."""

import lab  # noqa: F401  first, as it answers Ctrl-C during the imports that follow
