"""Which heads retrieve: the attention that falls on a number's copy while the number is answered.

In a one-number test (lab.probe.effective_distance) the right answer follows the prompt. Answer token j of the number is
predicted at index q_j, one before its own, and its copy is the token c_j of the needle. The share of a head is

    share = mean over j of p[q_j, c_j],    p = softmax of the head's logits

1 for a head that copies and nothing else, 1 / (q_j + 1) for even attention. The score of retrieval heads in
arXiv:2404.15574 counts tokens at which the copy has the largest weight; a mean of weights needs no threshold.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from lab.core.errors import ConfigError
from lab.core.types import FloatArray, Row
from lab.model.attention.inspection import LayerLogits, layer_inputs
from lab.model.decoder import Decoder
from lab.model.huggingface.foreign import AnyDecoder, Foreign
from lab.model.huggingface.interface import apply
from lab.probe.effective_distance import TOKENS_AT_ONCE, DistanceProbe, OneNumberCase, lay_out_answers


@contextmanager
def reading(model: nn.Module) -> Iterator[AnyDecoder]:
    """Open a model of transformers or of the lab to read its attention, and leave it as it was.

    Raises: ConfigError for another model, or one that is divided among ranks.
    """
    if isinstance(model, Decoder):
        yield model
        return
    is_divided = any(isinstance(weights, DTensor) for weights in model.parameters())
    if is_divided or not hasattr(getattr(model, "config", None), "get_text_config"):
        rule = "is no whole model of transformers or the lab, of which attention is read"
        raise ConfigError(f"model={type(model).__name__}: {rule}; save it and run probe-lab heads FOLDER")
    foreign = Foreign(model)
    try:
        yield foreign
    finally:
        apply(foreign.model)  # without the lab's attention


def shares_by_head(decoder: AnyDecoder, probe: DistanceProbe, distance: int) -> Iterator[Row]:
    """List the mean share of each layer's heads over the tests of a distance, and its standard deviation.

    Raises: DataError for logits that are not finite, ConfigError for a model that hides its attention.
    """
    cases = [probe.case(distance, test) for test in range(probe.tests)]
    rows = max(1, TOKENS_AT_ONCE // probe.window)
    parts = []
    for start in range(0, len(cases), rows):
        parts.append(score_cases(decoder, cases[start : start + rows], probe))
    shares = np.concatenate(parts)
    std = shares.std(0, ddof=int(len(shares) > 1))
    for (layer, head), share in np.ndenumerate(shares.mean(0)):
        row = {"distance": distance, "layer": layer, "head": head, "n": len(shares)}
        yield {**row, "score": float(share), "std": float(std[layer, head])}


def score_cases(decoder: AnyDecoder, cases: Sequence[OneNumberCase], probe: DistanceProbe) -> FloatArray:
    """Compute the shares of some tests in one pass.

    Shapes: float64 (cases, n_layers, n_heads).
    """
    tokens, _ = lay_out_answers(cases, probe.budget)
    first = probe.prompt_tokens - 1  # index that predicts the first token of the answer
    layers = []
    for inputs in layer_inputs(decoder, tokens.to(decoder.embedding.weight.device)):
        # Only the queries that predict the answer: the logits of all would be (T, T) for each head.
        p_BNQK = LayerLogits(inputs).block(slice(first, first + probe.budget)).softmax(-1)
        heads = []
        for p_NQK, case in zip(p_BNQK, cases, strict=True):
            scored = torch.tensor(case.encoded.scored)
            # The number's tokens follow one another in the needle as they do in the answer.
            copies = first - case.distances[0] + scored - scored[0]
            heads.append(p_NQK[:, scored, copies].double().mean(-1))
        layers.append(torch.stack(heads))
    return torch.stack(layers, dim=1).cpu().numpy()
