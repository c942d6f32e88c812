"""Hugging Face folders of the Llama family: read, written, and run under the lab's position methods."""

import importlib
from typing import Any

__all__ = ["apply", "load_pretrained", "save_pretrained"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: settings are read without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "interface" if name == "apply" else "pretrained"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
