"""The stages of a recipe: those of LongRecipe, and those of each baseline it is compared with; no torch.

Source: arXiv:2409.00509, section 5.1 and Table 2; Table 3 replays and merges the baselines as well.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

FOLDERS = {"tune": "tuned", "analyse": "impact", "extend": "extended", "replay": "replayed", "merge": "merged"}
TRAINING = ("tune", "extend", "replay")
SKIPS: dict[str, dict[str, Any] | None] = {  # of the samples that extend the base, by method
    "longrecipe": {"method": "longrecipe"},
    "flt": None,
    "pose": {"method": "pose"},
    "rpes": {"method": "rpes"},
    "random": {"method": "longrecipe", "random_sentences": True},
    "unselected": {"method": "longrecipe"},
}
Method = Literal["longrecipe", "flt", "pose", "rpes", "random", "unselected"]


class Stage(NamedTuple):
    """One stage: its name and kind, the method it belongs to, and the name of its folder."""

    name: str
    kind: str
    method: str
    folder: str


def stages_of(method: str) -> list[Stage]:
    """List the stages of a method; a baseline has an extension, a replay and a merge.

    Example:
        >>> [stage.name for stage in stages_of("pose")], stages_of("pose")[1].folder
        (['pose', 'pose_replay', 'pose_merge'], 'pose_replayed')
    """
    if method == "longrecipe":
        return [Stage(kind, kind, method, folder) for kind, folder in FOLDERS.items()]
    after = [Stage(f"{method}_{kind}", kind, method, f"{method}_{FOLDERS[kind]}") for kind in ("replay", "merge")]
    return [Stage(method, "extend", method, method), *after]


def earlier(stage: Stage, kind: str) -> Stage:
    """Return the stage of a kind that belongs to the same method."""
    return next(other for other in stages_of(stage.method) if other.kind == kind)


STAGES = tuple(stage.name for method in SKIPS for stage in stages_of(method))
