"""The number of the format that files are written in, and which earlier ones are read.

A number stands in environment.json of a run folder, for all its records; in the manifest of each checkpoint; in
checkpoints/untrained.json; in counts.npz; in the manifest of each shard, and in prepared.json of their folder.
tokenizer.json has the number of its own library.

    1   no number. Checkpoints of two kinds: state.ckpt is Lightning's own and holds weights and optimizer, or these
        are safetensors files beside it. counts.npz of the first versions holds no `tokens` and no supervised targets.
    2   the number; a run folder begins with checkpoints/untrained.json, which the first checkpoint replaces; hashes of
        manifests, and checksums of a shard's blocks, in its manifest or beside it, where they are recorded
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.errors import LabError

FORMAT, FIRST = 2, 1
KEY = "format"


def refuse_unknown(path: Path, number: Any, error: type[LabError]) -> None:
    """Refuse a file of a format that this version does not read; None stands for the first one.

    Raises: `error`.
    """
    found = FIRST if number is None else number
    if isinstance(found, bool) or not isinstance(found, int) or not FIRST <= found <= FORMAT:
        raise error(f"{path}: format {found} is unknown, this version reads up to {FORMAT}; update the code")
