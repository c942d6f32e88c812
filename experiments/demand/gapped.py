"""Ask for numbers whose distance in tokens and relative position differ: a gap in the ids follows the number.

    python -m experiments.demand.gapped RUN [--seed=0]

A number lies d tokens before the end of the prompt. The ids of all tokens after its needle are raised by a gap, so that
the question asks for it at the relative position d + gap. Writes the mean log p of the right number to
RUN/eval/gapped.jsonl, a line for each distance and relative position. Prompts are those of eval.distance.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.engine.needles import built
from eval.engine.rows import write_rows
from eval.engine.subject import as_subject
from lab.loading import open_model
from lab.probe.effective_distance import DistanceProbe, OneNumberCase, log_probs

DISTANCES = (24, 36, 48, 60)
POSITIONS = (24, 36, 48, 60, 72, 96, 120, 144, 168, 192, 240, 288)
TESTS = 64


@dataclass(frozen=True)
class Gapped:
    """A decoder that reads every row with a gap in the ids from one place on."""

    decoder: Any
    gap: int
    places: Tensor  # (rows, 1), where the raised ids begin

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss."""
        ids = torch.arange(tokens.shape[1]).expand_as(tokens)
        with torch.no_grad():
            out: Tensor = self.decoder(
                tokens, position_ids=ids + self.gap * (ids >= self.places), targets=targets, summed=False
            )
        return out.view(tokens.shape)


def first_after(case: OneNumberCase, distance: int) -> int:
    """Return the index of the first token after a case's needle."""
    return len(case.prompt_ids) - distance + case.spelling.sizes[1]


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device("cpu")
    model = open_model(options.run, {}, device=device)
    subject = as_subject(model, options.run, device)
    assert model.experiment is not None, "a run has a config"
    asked = {"distance_tests": TESTS, "distance_points": None, "distances": DISTANCES, "seed": options.seed}
    config = replace(model.experiment.tests, **asked)
    probe = built(DistanceProbe, subject, config, None, model.train_len)
    rows = []
    for distance in DISTANCES:
        cases = [probe.case(distance, test) for test in range(TESTS)]
        places = torch.tensor([[first_after(case, distance)] for case in cases])
        for position in (each for each in POSITIONS if each >= distance):
            gapped = Gapped(model.decoder, position - distance, places)
            found = log_probs(gapped, cases, probe.budget, device)
            about = {"metric": "gapped", "method": subject.row["method"], "distance": distance, "position": position}
            rows.append({**about, "n": TESTS, "log_prob": round(sum(found) / TESTS, 6)})
    write_rows(options.run / "eval" / "gapped.jsonl", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
