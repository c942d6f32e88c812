"""The options of a dry run on the command lines of lab.fit and lab.longrecipe; no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from annotated_types import Gt, Le

from lab.command import Words, read_options
from lab.errors import ConfigError
from lab.model.utilisation import PEAK_FLOPS
from lab.schema import PositiveFloat, Section

IGNORED = ("resume", "restart", "print_config", "launcher")


@dataclass(frozen=True, kw_only=True)
class DryRun(Section):
    """The GPUs that a run is planned for."""

    memory_gib: PositiveFloat | None = None
    """Memory of each GPU in GiB that the run must fit; left out, no limit."""
    utilisation: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the GPU's peak that the run reaches; left out, that of arXiv:2410.18745, A.2."""
    gpu: str = "A100"
    """GPU whose peak is used."""

    def rules(self) -> list[str]:
        """Refuse a GPU whose peak is unknown."""
        if self.gpu not in PEAK_FLOPS:
            return [f"gpu={self.gpu}: its peak is not known; use one of: {', '.join(PEAK_FLOPS)}"]
        return []


def separate(words: Words) -> tuple[dict[str, Any], DryRun]:
    """Separate the settings of the run from the options of a dry run.

    Raises: ConfigError for a wrong option, and for a flag that would be ignored.
    """
    given = [name for name in IGNORED if getattr(words.options, name, None)]
    if given:
        raise ConfigError(*(f"--{name}: would be ignored, --dry_run starts nothing; leave it out" for name in given))
    names = {item.name for item in fields(DryRun)}
    settings = {name: value for name, value in words.settings.items() if name not in names}
    return settings, read_options(DryRun, {name: words.settings[name] for name in names & words.settings.keys()})
