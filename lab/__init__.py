"""The probe lab: why a language model uses less context than it was trained on, and what changes that."""

import sys

from lab.interrupts import in_one_line

if sys.argv[:1] == ["-m"]:  # python -m COMMAND, before its module is loaded; other importers keep their own hook
    sys.excepthook = in_one_line
