"""The probe lab: why a language model uses less context than it was trained on, and what changes that.

lab.open_run(path) opens a run, lab.frame(pattern) is a table of many runs: lab/runs/analysis.py. lab.load_plugin(path)
adds your own methods: lab/plugins.py. They are imported on first use, so that `import lab` stays light.
"""

import importlib
import os
import sys
from contextlib import suppress
from itertools import takewhile
from typing import Any

__all__ = ["frame", "load_plugin", "open_run"]
LAZY = {"frame": "lab.runs.analysis", "open_run": "lab.runs.analysis", "load_plugin": "lab.plugins"}

if sys.platform == "win32":  # which has neither the signals that a run saves at nor the locks of its folder
    sys.stderr.write("Windows: is not supported; use WSL, Linux or macOS\n")
    raise SystemExit(2)
for _folder in takewhile(os.path.dirname(os.__file__).__ne__, sys.path):  # a plugin or measure there would be imported
    with suppress(OSError):
        for _file in {f"{name}.py" for name in sys.stdlib_module_names} & {*os.listdir(_folder or ".")}:
            with open(os.path.join(_folder, _file), "rb") as _source:
                if {b"lab", b"eval"} & {line.partition(b" ")[2].partition(b".")[0] for line in _source}:
                    rule = "takes the place of Python's own module of that name; rename the file"
                    sys.stderr.write(f"{os.path.join(_folder, _file)}: {rule}, as my_{_file}\n")
                    raise SystemExit(2)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
