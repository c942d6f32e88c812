"""The probe lab: why a language model uses less context than it was trained on, and what changes that.

lab.open_run(path) opens a run, lab.frame(pattern) is a table of many runs: lab/analysis/run.py. lab.load_plugin(path)
adds your own methods: lab/core/plugins.py. lab.watch(model, ...) measures your own training: lab/integrations. They are
imported on first use, so that `import lab` stays light.
"""

import importlib
import os
import sys
from typing import Any

from lab.core import startup

__all__ = ["PositionCounts", "frame", "load_plugin", "open_run", "watch"]
LAZY = {
    "PositionCounts": "lab.counts",
    "frame": "lab.analysis.run",
    "load_plugin": "lab.core.plugins",
    "open_run": "lab.analysis.run",
    "watch": "lab.integrations.watcher",
}

if startup.is_command():
    startup.check_system()
    if "TORCHELASTIC_RUN_ID" in os.environ and "lab.fit" in sys.orig_argv:  # a rank of a run
        startup.take_signals()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
