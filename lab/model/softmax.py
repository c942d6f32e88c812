"""What softmax does beside exponentials of logits; no torch.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lab.schema import Length, Method, OneOf

if TYPE_CHECKING:
    from torch import Tensor


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
