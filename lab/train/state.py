"""The form of a checkpoint's state.ckpt, by which a resume and lab.verify read it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict


class Counted(TypedDict):
    """What has been counted: see lab.counts.PositionCounts."""

    max_len: int
    lengths: list[int]
    gapped: list[int]
    supervised: list[int]
    evidence: list[int]
    demand: list[int]


class Recorded(TypedDict):
    """The state of lab.train.recording.Recording."""

    counts: Counted
    sums: dict[str, float]


class Schedule(TypedDict):
    """The state of torch's LambdaLR."""

    last_epoch: int
    base_lrs: list[float]
    lr_lambdas: list[Any]
    _last_lr: list[float]


class Streams(TypedDict):
    """The states of the packs' streams, int64 (n_streams, 1 + look_ahead)."""

    streams: Any


class State(TypedDict):
    """The contents of state.ckpt, from which a run continues."""

    step: int
    consumed_tokens: int
    skipped_steps: int
    schedule: Schedule
    data: Streams
    recording: Recorded
    final: dict[int, int]
    shared: dict[str, str]


READ = TypeAdapter(State)


def check(state: Any) -> None:
    """Check that a state has all parts, each of its form.

    Raises: ValueError.
    """
    try:
        READ.validate_python(state, strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    counts = state["recording"]["counts"]
    sizes = {name: counts["max_len"] + (name == "lengths") for name in Counted.__annotations__ if name != "max_len"}
    if any(len(counts[name]) != size for name, size in sizes.items()):
        raise ValueError("recording.counts: have another size than max_len states")
    if getattr(state["data"]["streams"], "ndim", 0) != 2:
        raise ValueError("data.streams: must have two axes")
