"""Passes over one token from the weights alone, against the decoder's modules."""

import pytest
import torch

from lab.model import inference
from lab.model.generation.generate import layout_of_steps
from lab.model.generation.steps import is_plain, step_of
from lab.model.products import Processor, onednn
from tests.model.methods import DISTANCES, DYNAMIC, FREQUENCIES, decoder, tokens

SETTINGS = {
    "plain": {},
    "biases": {"qkv_bias": True, "tie_embeddings": True},
    "norms_of_heads": {"qk_norm": True},
    "one_key_head": {"n_kv_heads": 1},
    "a_key_head_each": {"n_kv_heads": 4},
    "factor_on_logits": {"rotary": FREQUENCIES["yarn"]},
    "bands": {"method": DISTANCES["string"]},
    "keys_rotated_at_every_step": {"rotary": DYNAMIC},
    "reference": {"backend": "reference"},
}


@torch.no_grad()
def logits_of(model, prompts, coming, as_step):
    """Read the prompts, then the coming tokens one by one, the last two after the middle row has left."""
    cache, out = model.new_cache(len(prompts), 16), []
    model(prompts, cache=cache, last_only=True)
    layout = layout_of_steps(model, coming.new_zeros(1, 6), cache)
    for number, column in enumerate(coming.unbind(1)):
        if number == 3:
            cache.compact(torch.tensor([0, 2]))
        token = column[: cache.rows.stop]
        if number in (0, 3):
            step = step_of(model, cache, len(token), layout)
        out.append(step(token) if as_step else model(token[:, None], cache=cache)[:, -1])
    return out


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_step_computes_the_logits_of_a_pass_through_the_modules(settings):
    model, (prompts, coming) = decoder(**settings), tokens(1, 3, 14).split([9, 5], dim=1)
    assert is_plain(model, model.new_cache(1, 1))
    for mine, theirs in zip(*(logits_of(model, prompts, coming, as_step) for as_step in (True, False)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_step_multiplies_by_the_library_that_is_faster(monkeypatch):
    model, (prompts, coming) = decoder(dtype=torch.float32), tokens(2, 3, 14).split([9, 5], dim=1)
    expected = logits_of(model, prompts, coming, False)
    monkeypatch.setattr(inference, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr("lab.model.products.processor", lambda: Processor(bfloat16=True, onednn=onednn() is not None))
    for mine, theirs in zip(logits_of(model, prompts, coming, True), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_what_modules_run():
    cache = decoder().new_cache(1, 1)
    assert not is_plain(decoder(dtype=torch.bfloat16), cache)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_plain(decoder(), cache)
    half = decoder()
    half.head.bfloat16()
    assert not is_plain(half, cache)
