"""The form of a checkpoint's state.ckpt, which a save, a resume and lab.verify check alike.

Beyond the types, the parts of a state must agree with each other. Every stream has given one pack to each step, and
has drawn samples of its own only, of which each pack took one or more. What was counted are the consumed tokens.
"""

from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Whole = Annotated[int, Field(ge=0)]


class Counted(TypedDict):
    """What has been counted: see lab.counts.PositionCounts."""

    max_len: Whole
    lengths: list[Whole]
    gapped: list[Whole]
    supervised: list[Whole]
    evidence: list[Whole]
    demand: list[Whole]
    demand_by_ids: list[Whole]


class Recorded(TypedDict):
    """The state of lab.train.recording.Recording."""

    counts: Counted
    sums: dict[str, float]


class Schedule(TypedDict):
    """The state of torch's LambdaLR."""

    last_epoch: Whole
    base_lrs: list[float]
    lr_lambdas: list[Any]
    _last_lr: list[float]


class Streams(TypedDict):
    """The states of the packs' streams, int64 (n_streams, 2 + look_ahead): see lab.data.packing."""

    streams: Any


class State(TypedDict):
    """The contents of state.ckpt, from which a run continues; `optimizer` has the numbers of each parameter."""

    step: Whole
    consumed_tokens: Whole
    skipped_steps: Whole
    schedule: Schedule
    data: Streams
    recording: Recorded
    final: dict[Whole, Whole]
    optimizer: dict[str, dict[str, Any]]
    shared: dict[str, str]


READ = TypeAdapter(State)


def check(state: Any) -> None:
    """Check that a state has all parts, each of its form, and that they agree.

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
    counted = sum(length * n for length, n in enumerate(counts["lengths"])) + sum(counts["gapped"][:1])
    if counted != state["consumed_tokens"]:
        raise ValueError(f"recording.counts: are of {counted} tokens, consumed_tokens are {state['consumed_tokens']}")
    check_streams(getattr(state["data"]["streams"], "numpy", lambda: None)(), state["step"], state["consumed_tokens"])


def check_streams(streams: np.ndarray | None, step: int, consumed_tokens: int) -> None:
    """Check that the streams' states are those after so many steps.

    Raises: ValueError.
    """
    if streams is None or streams.dtype != np.int64 or streams.ndim != 2 or min(len(streams), streams.shape[1] - 2) < 1:
        raise ValueError("data.streams: must be int64 (n_streams, 2 + look_ahead)")
    given, following, waiting = streams[:, 0], streams[:, 1], streams[:, 2:]
    if (differ := np.flatnonzero(given != step)).size:
        rule = f"has given {given[differ[0]]} packs by step {step}, each step takes one of every stream"
        raise ValueError(f"data.streams: stream {differ[0]} {rule}")
    numbers = np.arange(len(streams))[:, None]
    foreign = (waiting % len(streams) != numbers) | (waiting >= following[:, None])
    if (following % len(streams) != numbers[:, 0]).any() or (foreign & (waiting != -1)).any() or (waiting < -1).any():
        raise ValueError("data.streams: a stream has samples of another")
    drawn = (following - numbers[:, 0]) // len(streams) - (waiting >= 0).sum(1)  # by each stream, for its packs
    if (drawn < given).any() or drawn.sum() > max(consumed_tokens, 0):  # a sample has one token or more
        raise ValueError("data.streams: have drawn more samples than were trained on, or fewer than their packs hold")
