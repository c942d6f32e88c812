"""The base class of masks: a predicate on pairs of tokens, and the order of documents in training windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from lab.schema import Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WindowMask(Section, ABC):
    """The settings that all masks share."""

    chunks: Annotated[int, Ge(2)] | None = None
    """Chunks each document of a window is cut into at random points; the chunks of all documents are shuffled, in
    order within each document. Left out, documents stay whole."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the mask in the config."""

    @staticmethod
    @abstractmethod
    def visible(q_index: Tensor, k_index: Tensor, q_doc: Tensor, k_doc: Tensor) -> Tensor:
        """Return whether the query sees the key; all arguments broadcast to the shape of the mask."""
