"""The table of evidence methods."""

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import Field

from lab.evidence.base import Evidence
from lab.evidence.repeat import Repeat
from lab.evidence.stored import Asked, Gain
from lab.evidence.suffix import Suffix

EVIDENCE_METHODS: dict[str, type[Evidence]] = {"repeat": Repeat, "suffix": Suffix, "asked": Asked, "gain": Gain}

if TYPE_CHECKING:
    EvidenceConfig: TypeAlias = Evidence
else:  # the table is the one place that lists the methods
    EvidenceConfig = Annotated[Union[tuple(EVIDENCE_METHODS.values())], Field(discriminator="method")]  # noqa: UP007
