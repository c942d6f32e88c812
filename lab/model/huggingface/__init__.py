"""Hugging Face folders of the Llama family: read, written, and run under the lab's position methods."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.model.huggingface.pretrained import apply, load_pretrained, save_pretrained

__all__ = ["apply", "load_pretrained", "save_pretrained"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: settings are read without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("lab.model.huggingface.pretrained"), name)
