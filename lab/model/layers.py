"""What layers differ in: their kinds, by how far each sees and what it rotates, and their softmax; no torch.

    full      all tokens before          every pair of dimensions, as in a model without kinds
    window    the last W tokens          every pair
    nope      all tokens before          none: inv_freq[j] = 0
    part      all tokens before          the first floor(p H / 2) pairs, of the highest frequencies; 0 for the others

Layer l has the kind pattern[l mod len(pattern)]. Distance methods change full and part layers alone: window layers keep
plain distances, and nope layers have none. A frequency method changes every layer that rotates, before pairs are left
out. Its factor on the logits, a number for each query, holds in all layers. The key cache holds every token for all.

A relative position is counted for a kind of layer that encodes it: those below W for window, none for nope, all for the
others. The f of a run is that of the kind which encodes most.

Source: arXiv:2501.18795 (RNoPE-SWA: three window layers to a nope layer); arXiv:2410.06205 (p-RoPE: part; p = 0 is
nope, p = 1 full), rounded as the transformers library's rope_type proportional. In Llama 4 (iRoPE) windows are chunks.

Sliding window: a query sees the last W tokens, itself among them, at plain distances.

    rel_pos(m, n) = i  for i < W,  hidden beyond       with i = m - n, in tokens

With W = 3 the queries at 3 and 4 see the keys 1 2 3 and 2 3 4.

Source: arXiv:2310.06825, section 2, with W as the transformers library counts it.

Softmax does more than take exponentials of logits.

    scalable       weight_j = exp(s ln(n) z_j) / sum_k exp(s ln(n) z_k)          s of each head and layer is learned
    temperature    the same with 1 + scale ln(1 + floor(n / length)) for s ln(n), in nope layers alone
    sink           weight_j = exp(z_j) / (exp(b) + sum_k exp(z_k))               b of each head and layer is learned

z_j are a query's logits. n is the number of keys that it sees: its document's up to itself under a mask, at most W in a
sliding window, in training and decoding alike. Measures of logits leave the sink out.

Source: arXiv:2501.19399 (scalable; s begins at 1 over the mean of ln(n) up to 1,024 tokens, where logits are on average
as large as softmax's); the transformers library's Llama 4 (temperature, with the position plus one for n) and gpt-oss
(sink, arXiv:2508.10925; b begins at 0, ours).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Gt, Lt

from lab.positions import Band, Distance, Frequencies, identity
from lab.positions.method import differences
from lab.positions.regions import Near
from lab.positions.rope import Plain
from lab.schema import Length, Method, OneOf, Section

if TYPE_CHECKING:
    from torch import Tensor


Kind = Literal["full", "window", "nope", "part"]


@dataclass(frozen=True, kw_only=True)
class LayersConfig(Section):
    """Kinds of layers, repeated over the depth."""

    pattern: tuple[Kind, ...]
    """Kinds of the first layers, repeated: full, window (a sliding window), nope (no positions) and part (rope on the
    highest frequencies alone), as [window, window, window, nope]."""
    window: Length | None = None
    """Tokens that window layers see, the query's own among them; below data.window."""
    fraction: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the dimensions of a head that part layers rotate."""

    def rules(self) -> Iterator[str]:
        """Refuse a pattern without effect, and parameters of kinds that are not in it."""
        if set(self.pattern) <= {"full"}:
            yield self.fault("pattern", "must have a kind beside full; add one, or leave model.layers out")
        for kind, name in (("window", "window"), ("part", "fraction")):
            if (kind in self.pattern) != (getattr(self, name) is not None):
                rule = "must be set for" if kind in self.pattern else "would be ignored without"
                yield self.fault(name, f"{rule} {kind} layers in model.layers.pattern; change one of them")

    def encoded(self, max_len: int) -> dict[str, int]:
        """Count the relative positions, from 0 on, that each kind of layer encodes of `max_len`.

        Example:
            >>> LayersConfig(pattern=("window", "nope"), window=48).encoded(192)
            {'window': 48, 'nope': 0}
        """
        limits = {"window": min(self.window or 0, max_len), "nope": 0}
        return {kind: limits.get(kind, max_len) for kind in dict.fromkeys(self.pattern)}

    def methods(self, kind: str, frequencies: Frequencies, distance: Distance) -> tuple[Frequencies, Distance]:
        """Return the position methods of a kind of layer in a model with these."""
        if kind == "full":
            return frequencies, distance
        if kind == "window":
            assert self.window is not None, "window layers have a window"
            return frequencies, Sliding(window=self.window)
        inv_freq = frequencies.inv_freq.clone()
        n_rotated = 0 if self.fraction is None or kind == "nope" else int(self.fraction * len(inv_freq))
        inv_freq[n_rotated:] = 0
        return replace(frequencies, inv_freq=inv_freq), distance if kind == "part" else Plain(log_n=distance.log_n)


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
        """Subtract every key position from every query position; pairs beyond the window are nan.

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


@dataclass(frozen=True, kw_only=True)
class Softmax(Method):
    """The parameters of a softmax, and its factor on the logits."""

    begins: ClassVar[float | None] = None
    """Where the number that each head of a layer learns begins; None if heads learn none."""
    is_sink: ClassVar[bool] = False
    """Whether that number is the logit of a key of value 0; else logits are multiplied by it."""
    only: ClassVar[str | None] = None
    """The kind of layers that have it; None for all."""

    def factor(self, n: Tensor) -> Tensor:
        """Compute the factor on the logits of queries that see n keys, one by default; float64 like n."""
        return n.double() * 0 + 1


@dataclass(frozen=True, kw_only=True)
class Scalable(Softmax):
    """Scalable softmax, whose logits grow with the logarithm of the number of keys."""

    begins: ClassVar[float | None] = 0.168
    method: Literal["scalable"] = "scalable"

    def factor(self, n: Tensor) -> Tensor:
        return n.double().log()


@dataclass(frozen=True, kw_only=True)
class Temperature(Softmax):
    """Llama 4's attention temperature, which depends on the number of keys and is not learned."""

    only: ClassVar[str | None] = "nope"
    method: Literal["temperature"] = "temperature"
    scale: ClassVar[float] = 0.1
    """Factor of the logarithm."""
    length: Length = 8192
    """Keys from which on logits are scaled, and after each of which the factor grows."""

    def factor(self, n: Tensor) -> Tensor:
        """Compute the factor.

        Example:
            >>> import torch
            >>> [round(x, 4) for x in Temperature().factor(torch.tensor([8191, 8192, 24576])).tolist()]
            [1.0, 1.0693, 1.1386]
        """
        return 1 + self.scale * (n.double() / self.length).floor().log1p()


@dataclass(frozen=True, kw_only=True)
class Sink(Softmax):
    """Attention sinks: a learned logit for each head, to which weight goes that no key should have."""

    begins: ClassVar[float | None] = 0.0
    is_sink: ClassVar[bool] = True
    method: Literal["sink"] = "sink"


SOFTMAXES: dict[str, type[Softmax]] = {"scalable": Scalable, "temperature": Temperature, "sink": Sink}
SoftmaxConfig = Annotated[Softmax, OneOf(Softmax, SOFTMAXES)]
