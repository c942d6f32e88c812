"""Types of layers, by how far each sees and whether it rotates; no torch.

    full      all earlier tokens         every pair of dimensions, as in a model without types
    window    the last W tokens          every pair
    nope      all earlier tokens         none: inv_freq[j] = 0
    part      all earlier tokens         the first floor(p H / 2) pairs, of the highest frequencies; 0 for the others

Layer l has the type pattern[l mod len(pattern)]. Distance methods change full and part layers alone: window layers
keep plain distances, and nope layers have none. A frequency method changes every layer that rotates, before pairs are
set to 0. Its factor on the logits, a number for each query, applies in all layers. The key cache keeps all tokens.

A relative position is counted for a type of layer that encodes it: those below W for window, none for nope, all for
the others. The f of a run is that of the type which encodes most.

Source: arXiv:2501.18795 (RNoPE-SWA: three window layers to a nope layer); arXiv:2410.06205 (p-RoPE: part; p = 0 is
nope, p = 1 full), rounded as the transformers library's rope_type proportional. In Llama 4 (iRoPE) windows are chunks.

Sliding window: a query sees the last W tokens, itself among them, at plain distances.

    rel_pos(m, n) = i  for i < W,  hidden beyond       with i = m - n, in tokens

With W = 3 the queries at 3 and 4 see the keys 1 2 3 and 2 3 4.

Source: arXiv:2310.06825, section 2, with W as the transformers library counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Gt, Lt

from lab.core.schema import Length, Section
from lab.positions import Band, Distance, Frequencies, identity
from lab.positions.method import differences
from lab.positions.regions import Near
from lab.positions.rope import Plain

if TYPE_CHECKING:
    from torch import Tensor


Kind = Literal["full", "window", "nope", "part"]


@dataclass(frozen=True, kw_only=True)
class LayersConfig(Section):
    """Types of layers, repeated over the depth."""

    pattern: tuple[Kind, ...]
    """Types of the first layers, repeated: full, window (a sliding window), nope (no positions) and part (rope on the
    highest frequencies alone), as [window, window, window, nope]."""
    window: Length | None = None
    """Tokens that window layers see, the query's own among them; below data.window."""
    fraction: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the dimensions of a head that part layers rotate."""

    def rules(self) -> Iterator[str]:
        """Reject a pattern without effect, and parameters of types that are not in it."""
        if set(self.pattern) <= {"full"}:
            yield self.fault("pattern", "must have a type besides full; add one, or leave model.layers out")
        for kind, name, value in (("window", "window", self.window), ("part", "fraction", self.fraction)):
            if kind in self.pattern and value is None:
                yield self.fault(name, f"must be set for {kind} layers in model.layers.pattern; change one of them")
            if kind not in self.pattern and value is not None:
                yield self.fault(name, f"would be ignored without {kind} layers in model.layers.pattern; omit it")

    def encoded(self, max_len: int) -> dict[str, int]:
        """Count the relative positions, from 0 on, that each type of layer encodes of `max_len`.

        Example:
            >>> LayersConfig(pattern=("window", "nope"), window=48).encoded(192)
            {'window': 48, 'nope': 0}
        """
        limits = {"window": min(self.window or 0, max_len), "nope": 0}
        return {kind: limits.get(kind, max_len) for kind in dict.fromkeys(self.pattern)}

    def methods(self, kind: str, frequencies: Frequencies, distance: Distance) -> tuple[Frequencies, Distance]:
        """Return the position methods of a type of layer in a model with these."""
        if kind == "full":
            return frequencies, distance
        if kind == "window":
            assert self.window is not None, "window layers have a window"
            return frequencies, Sliding(window=self.window)
        # Rotations by angle 0: attention needs no case for pairs without positions.
        inv_freq = frequencies.inv_freq.clone()
        if kind == "part":
            assert self.fraction is not None, "part layers have a fraction"
            inv_freq[int(self.fraction * len(inv_freq)) :] = 0
            return replace(frequencies, inv_freq=inv_freq), distance
        return replace(frequencies, inv_freq=0 * inv_freq), Plain(log_n=distance.log_n)


@dataclass(frozen=True, kw_only=True)
class Sliding(Distance):
    """The sliding window's parameters."""

    method: Literal["sliding"] = "sliding"
    window: Length
    """Window W in tokens."""

    @property
    def hides_pairs(self) -> bool:
        return True

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Subtract every key position from every query position; the result is nan for pairs beyond the window.

        Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
        Example:
            >>> import torch
            >>> Sliding(window=3).rel_pos(torch.tensor([4]), torch.arange(5)).tolist()
            [[nan, nan, 2.0, 1.0, 0.0]]
        """
        rel = differences(q_pos, k_pos)
        return rel.masked_fill(rel >= self.window, float("nan"))

    @property
    def bands(self) -> tuple[Band, ...]:
        return (Band(Near(self.window), identity, identity),)
