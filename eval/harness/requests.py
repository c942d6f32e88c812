"""Finished requests on disk, so that a run that was stopped goes on where it was.

requests-KEY.jsonl holds, one whole line each, a request's hash and what it came to. The key is all else that decides
it: weights, position methods, precision, the most tokens of a text. Which task asked, and how many documents were asked
for, is not in it: a run with a higher --limit, or of another task that asks the same, takes up what is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.common.results import Results
from eval.harness.scoring import Outcome


class FinishedRequests:
    """The finished requests of one file."""

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Raises: LabError where the file is broken or cannot be written.
        """
        self.file = Results(path, ("request",))
        self.known = {row["request"]: outcome_of(row) for row in self.file}

    def keep(self, outcomes: Mapping[str, Outcome]) -> None:
        """Add finished requests by their hashes; they are on the disk when this returns."""
        self.file.append([{"request": name, **outcome._asdict()} for name, outcome in outcomes.items()])
        self.known |= outcomes


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """Read an outcome back; JSON has turned a log-likelihood and its flag into a list."""
    value = tuple(row["value"]) if isinstance(row["value"], list) else row["value"]
    return Outcome(value, row["tokens"], row["cut"], row["seconds"])


def request_hash(kind: str, arguments: Sequence[Any]) -> str:
    """Name a request by all that it says, hexadecimal.

    Example:
        >>> request_hash("loglikelihood", ("One", " two")) == request_hash("loglikelihood", ("One ", "two"))
        False
    """
    return hashlib.sha256(json.dumps([kind, *arguments], sort_keys=True).encode()).hexdigest()[:32]
