"""Position frequency up to a checkpoint, as its run counted it."""

from __future__ import annotations

import numpy as np

from lab.counts import PositionCounts
from lab.loading import OpenedModel
from lab.runs.checkpoints import COUNTS, folder_name


def counts_of(model: OpenedModel) -> PositionCounts | None:
    """Read the counter of a model's checkpoint; None for one without, such as a Hugging Face folder."""
    if model.folder is None or model.consumed_tokens is None:
        return None
    path = model.folder / "checkpoints" / folder_name(model.consumed_tokens) / COUNTS
    if not path.is_file():
        return None
    with path.open("rb") as opened, np.load(opened) as file:
        lengths, frequency = file["lengths"], file["f"]
    counts = PositionCounts(len(frequency))
    counts.lengths = lengths
    counts.gapped = frequency - counts.frequency()  # also what a distance method moved
    return counts
