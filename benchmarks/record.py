"""The record that every benchmark writes, one JSON object per line: environment, command and result."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from lab.core.errors import LabError
from lab.model.devices import hardware
from lab.train.environment import commit, versions

Figures = dict[str, Any]
Status = Literal["ok", "failed", "timed out", "skipped"]


class Record(BaseModel):
    """One measurement: figures where it succeeded, the reason where it did not."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    benchmark: str
    """Module of benchmarks/ that measured."""
    stage: str
    """Part of the benchmark."""
    case: str
    """Setting within the stage; empty where it has only one."""
    command: str
    """Command line that repeats it."""
    commit: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    status: Status
    reason: str | None = None
    seconds: float
    """Time that the measurement took, warm-up included."""
    figures: Figures = {}

    @model_validator(mode="after")
    def states_its_outcome(self) -> Record:
        """Reject a success without figures and a failure without a reason."""
        if (self.status == "ok") != (self.reason is None) or (self.status == "ok" and not self.figures):
            raise ValueError(f"status={self.status}: needs {'figures' if self.status == 'ok' else 'a reason'} alone")
        return self


class Log:
    """Appends a benchmark's records to a file, or to none; a record is whole on disk before the next begins."""

    def __init__(self, benchmark: str, path: Path | None) -> None:
        self.benchmark, self.path = benchmark, path
        self.command = shlex.join(["python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]])
        self.last = time.monotonic()

    def add(
        self,
        stage: str,
        case: str = "",
        figures: Figures | None = None,
        *,
        status: Status = "ok",
        reason: str | None = None,
    ) -> Record:
        """Write one record, whose seconds are those since the record before."""
        now = time.monotonic()
        record = Record(
            benchmark=self.benchmark,
            stage=stage,
            case=case,
            command=self.command,
            **environment(),
            status=status,
            reason=reason,
            seconds=round(now - self.last, 3),
            figures=figures or {},
        )
        self.last = now
        if self.path is not None:
            line = json.dumps(record.model_dump(), allow_nan=False) + "\n"
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        return record


class Skipped(Exception):
    """What a case would measure cannot be measured here; the message is the reason."""


def outcome_of(measure: Callable[[], Figures]) -> dict[str, Any]:
    """Measure one case; an error becomes its outcome and does not stop the next case."""
    try:
        return {"status": "ok", "figures": measure()}
    except (Skipped, LabError) as error:  # what this machine lacks
        return {"status": "skipped", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"status": "failed", "reason": f"{type(error).__name__}: {str(error).strip() or 'no message'}"[:1000]}


@cache
def environment() -> dict[str, Any]:
    """Name the commit, the hardware and the versions of this process."""
    return {"commit": commit(), "hardware": hardware(), "versions": {"python": platform.python_version(), **versions()}}


def read(path: Path) -> list[Record]:
    """Read a file of records.

    Raises: pydantic.ValidationError for a line that is not a record.
    """
    return [Record.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_options(description: str | None, **defaults: str | int) -> argparse.Namespace:
    """Read a command line; options have the types of their defaults, and --json names the file to append records to."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()
