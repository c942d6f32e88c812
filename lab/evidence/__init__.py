"""Evidence: how far back in its text a target's nearest evidence is."""

from typing import Annotated

from lab.core.schema import OneOf
from lab.evidence.methods import Evidence, Repeat

EVIDENCE_METHODS: dict[str, type[Evidence]] = {"repeat": Repeat}
EvidenceConfig = Annotated[Evidence, OneOf(Evidence, EVIDENCE_METHODS)]
