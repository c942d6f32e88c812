"""Distance methods inside unmodified transformers models, against the same weights in the lab's decoder."""

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model.generate import greedy
from lab.model.huggingface import apply, load_pretrained
from lab.positions import distance
from tests.model.test_foreign import tiny

transformers = pytest.importorskip("transformers")
FLOAT32_TOL = 1e-5  # rotations composed in float32 against rotations made at once
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES = {
    "llama": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
METHODS = {
    "plain": distance("plain"),
    "string": distance("string", shift=15, window=4),
    "string_short_text": distance("string", shift=200, window=4),
    "dca": distance("dca", chunk=12, train_len=20),
    "self_extend": distance("self_extend", group=3, window=7),
    "rerope": distance("rerope", window=9),
    "leaky_rerope": distance("leaky_rerope", window=9, leak=3.0, log_n=20),
}


def build(family):
    name, settings = FAMILIES[family]
    sizes = {"num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "eos_token_id": None}
    return tiny(name, **sizes, **settings)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_generation_equal_our_decoder_and_padding_on_the_left_changes_nothing(family, text, tmp_path):
    """Under all methods for Llama, those of one and two key maps for others, which rotate alike."""
    model = build(family)
    model.save_pretrained(tmp_path)
    padded = torch.cat([torch.zeros(2, 6, dtype=torch.int64), text], dim=1)
    seen = torch.ones_like(padded)
    seen[0, :6] = 0
    padded[1, :6] = 5
    for name in METHODS if family == "llama" else ("dca", "leaky_rerope"):
        ours = load_pretrained(tmp_path, distance=METHODS[name])
        assert apply(model, distance=METHODS[name]) is model
        torch.testing.assert_close(model(text).logits, ours(text), rtol=0, atol=FLOAT32_TOL)
        answer = model.generate(text, max_new_tokens=12, do_sample=False)[:, 45:]
        assert torch.equal(answer, greedy(ours, text, 12))
        answer = model.generate(padded, attention_mask=seen, max_new_tokens=6, do_sample=False)[:, 51:]
        assert torch.equal(answer[:1], greedy(ours, text[:1], 6))
        assert torch.equal(answer[1:], greedy(ours, padded[1:], 6))


def test_a_sliding_window_and_the_name_alone_are_refused():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = transformers.MistralConfig(vocab_size=20, intermediate_size=8, sliding_window=4, **sizes)
    with pytest.raises(ConfigError, match="^model=MistralForCausalLM: attends .*; "):
        apply(transformers.MistralForCausalLM(config), distance=METHODS["string"])
    model, other = build("llama"), build("llama")
    apply(model, distance=METHODS["string"])
    other.set_attn_implementation("probe_lab")
    with pytest.raises(ConfigError, match="^attn_implementation=probe_lab: .*; call lab"):
        other(torch.tensor([[1, 2]]))


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_cache_of_fixed_size_shows_only_the_slots_that_are_filled(text, method):
    model = apply(build("llama"), distance=method)
    whole = model(text).logits
    cache, outs, begin = transformers.StaticCache(config=model.config, max_cache_len=60), [], 0
    for part in text.split([20, 1, 1, 23], dim=1):
        ids = torch.arange(begin, begin + part.shape[1])[None]
        begin += part.shape[1]
        outs.append(model(part, past_key_values=cache, use_cache=True, position_ids=ids).logits)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=0, atol=FLOAT32_TOL)
