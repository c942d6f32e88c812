"""Rules between the sections of a run's config."""

from __future__ import annotations

from lab.config.sections import TrainConfig
from lab.data.config import DataConfig
from lab.masks import MaskConfig
from lab.model.config import DecoderConfig
from lab.positions.methods import PositionConfig
from lab.probe.config import ProbeSection
from lab.schema import LONGEST
from lab.shape.config import Gaps, ShapeConfig
from lab.skip.methods import SkipConfig

MOST_WINDOWS = 1024  # of a length beyond the training window; papers extend by at most 64


def length_faults(reach: int, skip: SkipConfig | None, data: DataConfig, probe: ProbeSection) -> list[str]:
    """List lengths out of all proportion to the training window."""
    target = "skip" if skip is not None else "shape.strategy"
    lengths = {f"{target}.target_len": reach, "probe.max_length": probe.max_length or 0, "probe.step": probe.step}
    lengths |= {"probe.answer_budget": probe.budget}
    most = min(MOST_WINDOWS * data.window, LONGEST)
    return [
        f"{name}={length}: must be <= {most:,}, {most // data.window:,} training windows; lower it or raise data.window"
        for name, length in lengths.items()
        if length > most
    ]


def context_faults(train: TrainConfig, model: DecoderConfig, data: DataConfig) -> list[str]:
    """List what a group of processes that share each pack cannot divide."""
    parts = {"key-value heads (model.n_kv_heads)": model.n_kv_heads, "tokens of data.window": data.window}
    parts["tokens of train.micro_batch_tokens"] = train.micro_batch_tokens
    degree = train.context_parallel
    return [
        f"train.context_parallel={degree}: must divide the {size:,} {name}; lower it or change the other"
        for name, size in parts.items()
        if size % degree
    ]


def position_faults(
    position: PositionConfig, model: DecoderConfig, data: DataConfig, train: TrainConfig, probe: ProbeSection
) -> list[str]:
    """List the faults between the position methods and the other sections."""
    frequency, distance, window = position.frequency, position.distance, data.window
    longest = max(window, probe.longest(window)) if distance.beyond_training else window
    faults = [f"position.distance.{fault}" for fault in distance.length_faults(longest)]
    theta = getattr(frequency, "theta", None)
    if theta is not None and theta <= model.theta:
        faults.append(
            f"position.frequency.theta={theta}: must be > model.theta={model.theta} (the adjusted base is "
            "larger); raise it, or set model.theta and method: rope"
        )
    reach = getattr(distance, "train_len", None)
    if reach is not None and reach > window:
        faults.append(
            f"position.distance.train_len={reach}: must be <= data.window={window}, the longest distance that is "
            "counted; lower it"
        )
    if distance.method != "plain" and train.backend == "xformers":
        faults.append(
            f"train.backend=xformers: returns no log-sum-exp to merge the bands of {distance.method} by; use auto"
        )
    return faults


def mask_faults(
    mask: MaskConfig, skip: SkipConfig | None, data: DataConfig, position: PositionConfig, *, has_gaps: bool
) -> list[str]:
    """List the faults between masks, skips and the other sections."""
    inside = mask.method if mask.method != "causal" else "chunks" if mask.chunks is not None else None
    faults = []
    if inside is not None and data.mode != "concatenated":
        field = f"mask.method={mask.method}" if mask.method != "causal" else f"mask.chunks={mask.chunks}"
        faults.append(f"{field}: needs windows of several documents; set data.mode: concatenated")
    if skip is not None and inside is not None:
        faults.append(f"skip.method={skip.method}: needs mask: causal without chunks; leave one of them out")
    if skip is not None and skip.selects and data.mode != "concatenated":
        faults.append(
            f"data.mode={data.mode}: skip.selection takes sentences of full windows of "
            "skip.target_len tokens; set data.mode: concatenated"
        )
    if skip is not None and skip.target_len <= data.window:
        faults.append(
            f"skip.target_len={skip.target_len}: must be > data.window={data.window}, or there is nothing to skip; "
            "raise it"
        )
    odd = has_gaps or mask.method == "anchor" or mask.chunks is not None
    if position.distance.method != "plain" and (odd or getattr(mask, "ids", "reset") == "running"):
        faults.append(
            f"position.distance.method={position.distance.method}: training with it needs ids that count up "
            "from 0 in every document; use plain distance, and the method when evaluating"
        )
    return faults


def shape_faults(
    shape: ShapeConfig | None, skip: SkipConfig | None, data: DataConfig, mask: MaskConfig, *, reach: int
) -> list[str]:
    """List the faults between the shape and the other sections."""
    if shape is None:
        return []
    method, faults = shape.strategy.method, []
    weighs = method == "weights"
    if skip is not None:
        reason = "weights count tokens, not ids with gaps" if weighs else "would be ignored, shape decides the ids"
        faults.append(f"skip.method={skip.method}: {reason}; leave it out")
    if mask.chunks is not None or mask.method not in (("causal", "document") if weighs else ("causal",)):
        field = f"mask.method={mask.method}" if mask.method != "causal" else f"mask.chunks={mask.chunks}"
        ours = "causal or document" if weighs else "causal"
        faults.append(f"{field}: shape plans for mask: {ours} without chunks; leave the mask out")
    if weighs and data.mode == "uniform":
        faults.append(
            "data.mode=uniform: shape.strategy.method=weights counts targets of documents or full windows; "
            "set data.mode: natural or concatenated"
        )
    elif not weighs and data.mode != "concatenated":
        faults.append(f"data.mode={data.mode}: shape.strategy.method=skip joins documents; set data.mode: concatenated")
    if isinstance(shape.strategy, Gaps) and shape.strategy.target_len <= data.window:
        faults.append(
            f"shape.strategy.target_len={shape.strategy.target_len}: must be > data.window={data.window}, or there "
            "is nothing to skip; raise it"
        )
    up_to = getattr(shape.target, "up_to", None)
    if up_to is not None and up_to >= reach:
        faults.append(f"shape.target.up_to={up_to}: must be < {reach}, the longest distance plus one; leave it out")
    return faults
