"""The four-needle test under its public name; see lab.probe.needles."""

from lab.probe.needles import found, make_case

__all__ = ["found", "make_case"]
