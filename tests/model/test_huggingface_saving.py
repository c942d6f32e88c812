"""Saving decoders as Hugging Face folders."""

import dataclasses

import pytest
import safetensors
import torch

from lab.errors import CheckpointError, ConfigError
from lab.model.decoder import Decoder
from lab.model.huggingface import load_pretrained, save_pretrained
from lab.positions import distance, frequencies
from tests.model.folders import (
    APART,
    BASE,
    CLASSES,
    HEADER_BYTES,
    METHODS,
    assert_same_logits,
    assert_same_state,
    decoder,
    lengths_for,
    logits_of,
    opened,
    randomise,
    safetensors_torch,
    tokens_of,
)
from tests.refusals import refused

ENTROPY = {"method": "entropy_abf", "theta": 500.0, "train_len": 16}


@pytest.mark.parametrize("method", METHODS)
def test_transformers_computes_the_logits_of_a_saved_decoder(method, tmp_path):
    ours = decoder(method)
    save_pretrained(ours, tmp_path / "model")
    model = opened(tmp_path / "model")
    lengths = lengths_for("dynamic" if method == "dynamic_ntk" else method)
    assert_same_logits(ours, model, lengths)
    again = load_pretrained(tmp_path / "model")
    torch.testing.assert_close(again.frequencies.inv_freq, ours.frequencies.inv_freq, rtol=1e-14, atol=0)
    q_pos = torch.arange(200)
    assert again.frequencies.logit_factor(q_pos).tolist() == ours.frequencies.logit_factor(q_pos).tolist()
    if method not in {"rope", "abf", "dynamic_ntk"}:
        plain = Decoder(BASE, frequencies=frequencies("rope", head_dim=16, theta=1000.0), seed=None)
        plain.load_state_dict(ours.state_dict())
        assert float((logits_of(plain, tokens_of(50)) - logits_of(ours, tokens_of(50))).abs().max()) > APART


@pytest.mark.parametrize(
    ("family", "tied", "changes"),
    [
        ("llama", True, {"attention_width": None, "n_kv_heads": 4}),
        ("llama", False, {}),
        ("qwen2", True, {"qkv": "bias"}),
        ("qwen2", False, {"qkv": "bias", "n_heads": 6, "attention_width": 48}),
        ("mistral", False, {"attention_width": 48, "n_heads": 6}),
        ("qwen3", True, {"qkv": "norm"}),
    ],
    ids=["multi_head_tied", "width", "biases_tied", "biases_6_heads", "6_heads", "norms_tied"],
)
def test_every_shape_of_decoder_goes_there_and_back(family, tied, changes, tmp_path):
    cfg = dataclasses.replace(BASE, tie_embeddings=tied, **changes)
    own = frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
    ours = randomise(Decoder(cfg, frequencies=own), seed=2)
    save_pretrained(ours, tmp_path / "model", train_len=200)
    model = opened(tmp_path / "model")
    assert type(model) is CLASSES[family][1]
    assert_same_logits(ours, model)
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    assert model.config.max_position_embeddings == 200
    names = safetensors_torch.load_file(tmp_path / "model" / "model.safetensors")
    assert ("lm_head.weight" in names) == (not tied)
    again = load_pretrained(tmp_path / "model")
    assert again.cfg == cfg
    assert_same_state(again, ours)


@pytest.mark.parametrize(
    ("shard_bytes", "dtype"),
    [(10**9, torch.float64), (20_000, torch.float32), (20_000, torch.bfloat16), (1, torch.float32)],
    ids=["whole", "shards", "shards_bf16", "a_tensor_each"],
)
def test_loading_what_was_saved_gives_the_same_bits(shard_bytes, dtype, tmp_path):
    ours = decoder("yarn").to(dtype)
    save_pretrained(ours, tmp_path / "model", shard_bytes=shard_bytes)
    assert_same_state(load_pretrained(tmp_path / "model", dtype=dtype), ours)
    files = sorted(tmp_path.glob("model/model*.safetensors"))
    n_tensors = len(ours.state_dict())
    assert {10**9: len(files) == 1, 20_000: 1 < len(files) < n_tensors, 1: len(files) == n_tensors}[shard_bytes]
    largest = max(tensor.nbytes for tensor in ours.state_dict().values())
    assert all(file.stat().st_size < max(shard_bytes, largest) + HEADER_BYTES for file in files)
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened_file:
            assert opened_file.metadata() == {"format": "pt"}, "transformers 4 reads no other"
    model = opened(tmp_path / "model")
    assert model.dtype == dtype
    assert torch.equal(model.get_input_embeddings().weight, ours.embedding.weight)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "model"], "no temporary folder is left"


NOT_IN_CONFIG = "not supported by a Hugging Face folder"
SAVES = {
    "distance": (
        lambda: decoder(distance=distance("string", shift=20, window=4)),
        None,
        f"distance=string: {NOT_IN_CONFIG}",
    ),
    "log_n": (lambda: decoder(distance=distance("plain", log_n=64)), None, f"distance.log_n=64: {NOT_IN_CONFIG}"),
    "entropy_abf": (
        lambda: Decoder(BASE, frequencies=frequencies(**ENTROPY, head_dim=16)),
        None,
        f"frequencies=entropy_abf: {NOT_IN_CONFIG}",
    ),
    "fixed_length": (
        lambda: Decoder(BASE, frequencies=decoder("dynamic_ntk").frequencies.at_length(100)),
        None,
        f"frequencies.length=100: {NOT_IN_CONFIG}",
    ),
    "dynamic_length": (lambda: decoder("dynamic_ntk"), 128, "train_len=128: must be 64, that of the frequencies"),
    "no_length": (decoder, 0, "train_len=0: must be >= 1"),
}


@pytest.mark.parametrize(("make", "train_len", "rule"), SAVES.values(), ids=SAVES)
def test_positions_that_a_folder_cannot_express_are_refused_by_name(make, train_len, rule, tmp_path):
    with refused(rule, error=ConfigError):
        save_pretrained(make(), tmp_path / "model", train_len=train_len)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("kept")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with refused(f"{path}: is not empty", error=CheckpointError):
            save_pretrained(decoder(), path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    save_pretrained(decoder(), tmp_path / "empty")
    save_pretrained(decoder(), tmp_path / "new" / "model")
    assert_same_state(load_pretrained(tmp_path / "empty"), load_pretrained(tmp_path / "new" / "model"))
