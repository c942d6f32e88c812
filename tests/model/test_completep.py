"""CompleteP: the paper's table by hand, and training by its multipliers, which the lab folds into matrices."""

import math

import pytest
import torch

from lab.errors import ConfigError
from lab.model import optimizer
from lab.model.config import BaseShape, DecoderConfig, OptimConfig
from lab.model.decoder import Decoder
from lab.model.optimizer import make_optimizer
from tests.fits import load

BASE = BaseShape(d_model=8, n_layers=2)
WIDE = DecoderConfig(32, 6, 4, 2, 48, 50, tie_embeddings=False, qkv="bias", base=BASE)  # m_N = 4, m_L = 3
ALONE = DecoderConfig(32, 6, 4, 2, 48, 50, tie_embeddings=False, qkv="bias")
OPTIM = OptimConfig(lr=0.02, min_lr=0, beta2=0.95)
LOGIT_TOL = 1e-9  # of logits of order one after three float64 steps through six blocks
STD_TOL = 0.05  # of the standard deviation of a thousand normal draws
M_N, M_L = 4, 3


def paper(name, ndim):
    """Rate, weight decay and epsilon of a parameter as factors, from Table 1 with alpha = 1."""
    in_block = name.startswith("blocks.")
    epsilon = 1 / (M_N * M_L) if in_block else 1
    if ndim == 1:
        return 1, 0, epsilon
    return (1 / M_N, M_N, epsilon) if in_block else (1, 1, epsilon)


def explicit(model):
    """Multiply what blocks add and the logits of a model as the paper does; its own matrices are as much larger."""
    divided = lambda by: lambda module, given, out: out / by  # noqa: E731
    for block in model.blocks:
        block.attention.out.register_forward_hook(divided(M_L))
        block.feed_forward.out.register_forward_hook(divided(M_L))
    model.head.register_forward_hook(divided(M_N))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(M_L if name.endswith("out.weight") else M_N if name == "head.weight" else 1)
    return model


def trained(model, made):
    """Take three steps on drawn tokens and return the logits after each."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(3):
        tokens = torch.randint(0, 50, (2, 12), generator=generator)
        logits = model(tokens)
        found.append(logits.detach())
        torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        made.step()
        made.zero_grad()
    return found


def test_three_steps_are_those_of_the_papers_multipliers(monkeypatch):
    monkeypatch.setattr(optimizer, "EPSILON", 1e-3)  # large enough to matter
    ours, theirs = Decoder(WIDE, seed=1).double(), Decoder(ALONE, seed=1).double()
    theirs.load_state_dict(ours.state_dict())
    explicit(theirs)
    groups = []
    for name, parameter in theirs.named_parameters():
        rate, decay, epsilon = paper(name, parameter.ndim)
        groups.append({"params": [parameter], "lr": 0.02 * rate, "weight_decay": 0.1 * decay, "eps": 1e-3 * epsilon})
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for one, other in zip(trained(ours, make_optimizer(ours, OPTIM)), trained(theirs, reference), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=LOGIT_TOL)


def test_first_weights_have_the_variances_of_the_table():
    drawn = dict(Decoder(WIDE, seed=3).named_parameters())
    base = math.sqrt(2 / (5 * 8))  # of a base of 8 wide; the multipliers 1/3 and 1/4 are in the matrices
    outer = 1 / (math.sqrt(32 / M_N) * 2)  # of a base of 2 blocks
    for name, std in {
        "embedding.weight": base,
        "head.weight": base / M_N,
        "blocks.2.attention.q.weight": base / math.sqrt(M_N),
        "blocks.5.feed_forward.up.weight": base / math.sqrt(M_N),
        "blocks.1.attention.out.weight": outer / math.sqrt(M_N) / M_L,
    }.items():
        assert drawn[name].std().item() == pytest.approx(std, rel=STD_TOL), name


def test_its_own_base_changes_nothing():
    own = DecoderConfig(32, 6, 4, 2, 48, 50, False, qkv="bias", base=BaseShape(d_model=32, n_layers=6))
    models = [Decoder(cfg, seed=4) for cfg in (own, ALONE)]
    one, other = (make_optimizer(model, OPTIM).state_dict() for model in models)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert one == other
    assert [(group["weight_decay"], group["lr"], group["eps"]) for group in one["param_groups"]] == [
        (0.1, 0.02, 1e-8),
        (0.0, 0.02, 1e-8),
    ]


def test_what_has_no_rule_is_refused():
    base = ("--model.base.d_model=16", "--model.base.n_layers=1")
    untied = "--model.tie_embeddings=false"
    assert load(*base, untied).model.ratios == (2.0, 2.0)
    for words, line in (
        (("--model.tie_embeddings=true",), "model.tie_embeddings=True: does not go with model.base; set false"),
        ((untied, "--model.norm=post"), "model.norm=post: does not go with model.base; set pre"),
        ((untied, "--optim.matrices=muon"), "optim.matrices=muon: does not go with model.base; use adamw"),
    ):
        with pytest.raises(ConfigError, match=line):
            load(*base, *words)
