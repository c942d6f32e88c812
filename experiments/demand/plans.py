"""What the experiments of docs/demand.md and docs/arms.md compare: arms, bands of distances, tests of predictions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from lab.yaml import flatten

GAIN = "gain"  # of eval.recall, the outcome on real text
GAPPED = "gapped"  # in place of a method: asked at relative positions beyond the distance in tokens
LAST = 179
BASE, CENSORED_DEMAND = "pre-norm", ", demand to 96"
Config = dict[str, Any]
ARMS: dict[str, Config] = {  # the first whose settings a run has is its arm
    "post-norm": {"model.norm": "post"},
    "sandwich norm": {"model.norm": "sandwich"},
    "norm of q and k": {"model.qkv": "norm"},
    "gated attention": {"model.gate": True},
    "window, full": {"model.layers.pattern": ["window", "full"]},
    "window, no rope, temperature": {"model.softmax.method": "temperature"},
    "window, no rope": {"model.layers.pattern": ["window", "nope"]},
    "rope on 3/4": {"model.layers.pattern": ["part"]},
    "scalable softmax": {"model.softmax.method": "scalable"},
    "sink": {"model.softmax.method": "sink"},
    "2 key heads": {"model.n_kv_heads": 2},
    "1 key head": {"model.n_kv_heads": 1},
    "growing blocks": {"data.schedule.start": 16},
    "joined documents": {"data.mode": "concatenated"},
}


class Contrast(NamedTuple):
    """A difference between two arms in the mean outcome over distances from `low` to `high`, for a prediction."""

    prediction: str
    arm: str
    other: str
    low: int
    high: int


def by_fork(config: Config) -> str:
    """Name a run of forks: the table, the seed and the arm make up its name.

    Example:
        >>> by_fork({"run": {"name": "S3_64-2-far_off_64"}}), by_fork({"run": {"name": "S3_64-2-base"}})
        ('far off 64', 'base 64')
    """
    table, _, arm = str(config["run"]["name"]).split("-", 2)
    beyond = table.partition("_")[2]
    if beyond and arm == "base":  # each table of S3 has bases of its own
        arm = f"base {beyond}"
    return arm.replace("_", " ")


def by_parts(config: Config) -> str:
    """Name a run's arm of ARMS, and whether demand is censored.

    Example:
        >>> by_parts({"model": {"norm": "post"}}), by_parts({"model": {}, "weights": {"by": "evidence"}})
        ('post-norm', 'pre-norm, demand to 96')
    """
    settings = flatten(config)
    arms = (name for name, own in ARMS.items() if all(settings.get(key) == value for key, value in own.items()))
    return next(arms, BASE) + CENSORED_DEMAND * bool(config.get("weights"))


class Plan(NamedTuple):
    """What an experiment compares: the tables of its runs, its arms, bands of distances, and tests.

    `outcome` is what a distance is measured by: log p of the right number in nats, or GAIN. `equal` are pairs of arms
    that should be equal. `crossed` are each four arms, of which the last two differ as the first two do: is the effect
    on ln reach the same? `panels` are the arms of each panel of the picture; without any, all are in one. With
    `details` arms have their held-out loss and reach at a threshold of 0.5. `beside` are bands of relative positions at
    which log p is measured too, as under GAPPED.
    """

    tables: tuple[str, ...]
    arms: tuple[str, ...]
    bands: tuple[tuple[int, int], ...]
    contrasts: tuple[Contrast, ...] = ()
    equal: tuple[tuple[str, str, str], ...] = ()
    crossed: tuple[tuple[str, ...], ...] = ()
    name: Callable[[Config], str] = by_fork
    outcome: str = "log p"
    panels: tuple[tuple[str, ...], ...] = ()
    details: bool = False
    beside: tuple[tuple[int, int], ...] = ()


CROSSED = tuple((BASE, BASE + CENSORED_DEMAND, arm, arm + CENSORED_DEMAND) for arm in ARMS)
FORKED = ("all", "far off", "kind off")
PLANS = {
    "arms": Plan(
        ("arms",),
        tuple(f"{arm}{ending}" for arm in (BASE, *ARMS) for ending in ("", CENSORED_DEMAND)),
        ((48, 60), (72, 120), (132, LAST)),
        tuple(Contrast("moves", arm, BASE, 48, LAST) for arm in ARMS),
        crossed=CROSSED,
        name=by_parts,
        panels=CROSSED,
        details=True,
    ),
    "S1": Plan(
        ("S1",),
        ("base", "all", "far off", "near off", "kind off"),
        ((65, LAST),),
        tuple(Contrast("S1a", arm, "far off", 65, LAST) for arm in ("all", "near off", "kind off")),
        beside=((72, 192), (240, 288)),
    ),
    "S3": Plan(
        ("S3_64", "S3_96"),
        tuple(f"{arm} {D}" for D in (64, 96) for arm in ("base", *FORKED)),
        ((65, LAST),),
        tuple(Contrast("S3a", f"{arm} {D}", f"far off {D}", 65, LAST) for D in (64, 96) for arm in ("kind off", "all")),
        panels=tuple(tuple(f"{arm} {D}" for arm in FORKED) for D in (64, 96)),
    ),
    "S4": Plan(
        ("S4",),
        ("base", "all", "far off"),
        ((2, 64), (65, 512)),
        (Contrast("S4", "far off", "all", 65, 512),),
        (("S4", "far off", "all"),),
        outcome=GAIN,
    ),
}
