"""What the callbacks log of a probe next to its values: table and figure by distance, in wandb or TensorBoard."""

import warnings
from io import BytesIO
from typing import Any

import numpy as np

from lab.integrations.watcher import Watcher


def log_probe(tracker: Any, watch: Watcher, step: int) -> None:
    """Log the last probe by wandb, after values of the same step, or by a SummaryWriter; other trackers get nothing.

    An error leaves a warning, as without the extra plot: training must not depend on its trackers.
    """
    is_wandb = hasattr(tracker, "define_metric")
    if not is_wandb and not hasattr(tracker, "add_image"):
        return
    table, png = watch.tables[-1], BytesIO()
    try:
        watch.plot().save(png, "png", scale_factor=2)
        from PIL import Image

        figure = np.asarray(Image.open(png))
        if is_wandb:
            import wandb

            # Both trainers let wandb repeat the step of the values before.
            tracker.log({"retrieval/table": wandb.Table(dataframe=table), "retrieval/figure": wandb.Image(figure)})
        else:
            tracker.add_text("retrieval/table", table.to_markdown(index=False), step)
            tracker.add_image("retrieval/figure", figure, step, dataformats="HWC")
    except Exception as error:
        warnings.warn(f"no table and no figure at the tracker: {error}", stacklevel=2)
