"""The model card of an exported run, and the commands that publish it."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import draw
from lab.counts import SavedCounts
from lab.counts.demand import per_distance
from lab.errors import MissingPackage
from lab.files import write_atomic
from lab.loading import OpenedModel
from lab.probe.limits import shown_length
from lab.runs.analysis import open_run, shown_reach
from lab.runs.checkpoints import COUNTS, candidates, folder_name
from lab.runs.folder import RunFolder
from lab.schema import flatten

CARD, PICTURE = "README.md", "f_and_g.png"
SHOWN = ("data.corpus.", "data.window", "data.mode", "model.", "position.", "mask.", "skip.", "evidence.", "weights.")
TEXT = """---
library_name: transformers
tags: [probe-lab, long-context]
---
# {name}

{parameters:,} parameters, trained on {tokens:,} tokens in windows of {window:,}; positions {method}.

{reach}

{picture}`AutoModelForCausalLM.from_pretrained({place})` opens it. The probe lab measures and trains it again by

```sh
probe-lab distance {folder} --plot
probe-lab fit {folder}/experiment.yaml
```

Settings of its arm (`experiment.yaml` has all):

```text
{settings}
```
"""
DRAWN = """![f and g by distance]({picture})

f(i): pairs of tokens i apart that attention saw in training. g(d): targets whose evidence was d tokens back.

"""


def write_card(model: OpenedModel, run: Path, output: Path) -> None:
    """Write the card of a run's checkpoint into its exported folder."""
    tokens = model.consumed_tokens or 0
    settings = {} if model.experiment is None else flatten(model.experiment.to_dict())
    shown = {key: value for key, value in settings.items() if key.startswith(SHOWN) and value is not None}
    arm = [" ".join(f"{key}: {value}".splitlines()) for key, value in shown.items()]
    is_drawn = draw_counts(run / "checkpoints" / folder_name(tokens) / COUNTS, output / PICTURE)
    text = TEXT.format(
        name=plain(model.name),
        parameters=model.decoder.cfg.n_parameters(),
        tokens=tokens,
        window=model.train_len,
        method=model.method,
        reach=reach_line(run, tokens),
        picture=DRAWN.format(picture=PICTURE) if is_drawn else "",
        place=json.dumps(output.resolve().name),
        folder=shlex.quote(output.resolve().name),
        settings="\n".join(arm),
    )
    write_atomic(output / CARD, text.encode())


def plain(name: str) -> str:
    r"""Write a name as one line of Markdown that has no markup.

    Example:
        >>> print(plain("a_b [x](y)"), plain("<a>\n---"))
        a_b \[x\](y) \<a\> ---
    """
    return re.sub(r"([\\`*\[\]<>#&])", r"\\\1", " ".join(name.split()))


def draw_counts(counts: Path, picture: Path) -> bool:
    """Draw f and g, where they were counted and Altair is installed, and return whether that is so."""
    try:
        draw.altair()
        profiles = SavedCounts.read(counts).profiles() if counts.exists() else {}
    except MissingPackage:
        return False
    style: dict[str, Any] = {"log_x": True, "log_y": True, "x_title": "distance (tokens)", "names": [*profiles]}
    style["y_title"] = "count at each distance"
    if profiles:
        draw.save(draw.draw(per_distance(profiles), "distance", "per distance", "profile", **style), picture)
    return bool(profiles)


def reach_line(run: Path, tokens: int) -> str:
    """Describe the reach at the last probe up to a checkpoint, with its limits."""
    probes = [row for row in RunFolder(open_run(run).path).probes() if row["consumed_tokens"] <= tokens]
    if not probes or "first_distance" not in probes[-1]:
        return "How far back it retrieves was not measured in training."
    row = probes[-1]
    found = shown_reach(row, "reach", "first_distance", "last_distance")
    low = shown_length(row["reach_low"], row["first_distance"], ",.1f")
    high = f"above {row['last_distance']:,}" if row["reach_high"] is None else format(row["reach_high"], ",.1f")
    return (
        f"After {row['consumed_tokens']:,} tokens, under {row['method']}: **{found} tokens**, within {low} to {high} "
        f"at confidence {row['confidence']:g}. Reach is the largest distance at which a share of "
        f"{row['threshold']:g} of hidden numbers is retrieved."
    )


def publishing(model: OpenedModel, run: Path, output: Path, options: Sequence[str]) -> str:
    """Write the commands that publish a run: each checkpoint on a branch of its name, the newest on main as well."""
    upload = ["hf", "upload", f"OWNER/{model.name}"]
    lines = []
    for number, path in enumerate(candidates(run / "checkpoints")):
        folder, export = str(output), ""
        if path.name != folder_name(model.consumed_tokens or 0):
            folder += f"-{path.name}"
            export = shlex.join(["probe-lab", "export", str(path), "-o", folder, *options]) + " && "
        lines.append(f"{export}{shlex.join([*upload, folder, f'--revision={path.name}'])}")
        if number == 0:
            lines.append(shlex.join([*upload, folder]))
    return "\n".join(["to publish it, a checkpoint a branch:", *lines])
