"""The table of evidence methods."""

from typing import Annotated

from lab.evidence.base import Evidence
from lab.evidence.repeat import Repeat
from lab.evidence.stored import Asked, Gain
from lab.evidence.suffix import Suffix
from lab.schema import OneOf

EVIDENCE_METHODS: dict[str, type[Evidence]] = {"repeat": Repeat, "suffix": Suffix, "asked": Asked, "gain": Gain}
EvidenceConfig = Annotated[Evidence, OneOf(Evidence, EVIDENCE_METHODS)]
