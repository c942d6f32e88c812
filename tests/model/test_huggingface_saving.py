"""Saving decoders as Hugging Face folders, and what is refused in such folders: by name, in one line."""

import dataclasses
import functools
import os
import shutil

import huggingface_hub
import pytest
import safetensors
import torch

from lab.core.errors import CheckpointError, ConfigError
from lab.model.config import LayersConfig
from lab.model.decoder import Decoder
from lab.model.huggingface import load_pretrained, save_pretrained
from lab.positions import distance, frequencies
from tests.model import folders as hf
from tests.refusals import refused

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = "must be one of default, linear, dynamic, yarn, llama3"
WHOLE = "attention sees all preceding tokens"
SILU = "must be silu, the feed-forward is SwiGLU"
MISTRAL, QWEN2 = {"model_type": "mistral"}, {"model_type": "qwen2"}


SAVED = {  # the family that a decoder becomes, its frequencies, and how it differs from hf.BASE
    **{method: ("llama", method, {}) for method in hf.METHODS},
    "multi_head_tied": ("llama", "rope", {"tie_embeddings": True, "attention_width": None, "n_kv_heads": 4}),
    "biases_tied": ("qwen2", "rope", {"tie_embeddings": True, "qkv": "bias"}),
    "biases_6_heads": ("qwen2", "rope", {"qkv": "bias", "n_heads": 6, "attention_width": 48}),
    "6_heads": ("mistral", "rope", {"n_heads": 6, "attention_width": 48}),
    "norms_tied": ("qwen3", "rope", {"tie_embeddings": True, "qkv": "norm"}),
}


@pytest.mark.parametrize(("family", "method", "changes"), SAVED.values(), ids=SAVED)
def test_every_decoder_is_read_by_transformers_and_by_the_lab(family, method, changes, tmp_path):
    cfg, path = dataclasses.replace(hf.BASE, **changes), tmp_path / "model"
    ours, train_len = hf.decoder(method, cfg), 200 if method == "rope" else None
    save_pretrained(ours, path, train_len=train_len)
    model, again = hf.opened(path), load_pretrained(path)
    assert type(model) is hf.CLASSES[family][1]
    hf.assert_same_logits(ours, model, hf.lengths_for(method))
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    assert train_len in (None, model.config.max_position_embeddings)
    assert ("lm_head.weight" in hf.safetensors_torch.load_file(path / WEIGHTS)) == (not cfg.tie_embeddings)
    assert dataclasses.replace(again.cfg, theta=cfg.theta) == cfg  # which ntk writes
    hf.assert_same_state(again, ours)
    torch.testing.assert_close(again.frequencies.inv_freq, ours.frequencies.inv_freq, rtol=1e-14, atol=0)
    q_pos = torch.arange(200)
    assert again.frequencies.logit_factor(q_pos).tolist() == ours.frequencies.logit_factor(q_pos).tolist()
    if method not in {"rope", "abf", "dynamic_ntk"}:
        plain = Decoder(hf.BASE, frequencies=frequencies("rope", head_dim=16, theta=1000.0), seed=None)
        plain.load_state_dict(ours.state_dict())
        changed = hf.logits_of(plain, hf.tokens_of(50)) - hf.logits_of(ours, hf.tokens_of(50))
        assert float(changed.abs().max()) > hf.APART


def save_sharded(ours, path):
    """Save with the library's default size of files replaced."""
    own = functools.partial(huggingface_hub.save_torch_state_dict, max_shard_size=20_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub, "save_torch_state_dict", own)
        save_pretrained(ours, path)


def test_loading_what_was_saved_in_parts_gives_the_same_bits(tmp_path):
    ours = hf.decoder("yarn").to(torch.bfloat16)
    save_sharded(ours, tmp_path / "model")
    hf.assert_same_state(load_pretrained(tmp_path / "model", dtype=torch.bfloat16), ours)
    files = sorted(tmp_path.glob("model/model*.safetensors"))
    assert 1 < len(files) < len(ours.state_dict())
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened_file:
            assert opened_file.metadata() == {"format": "pt"}, "transformers 4 reads no other"
    model = hf.opened(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.get_input_embeddings().weight, ours.embedding.weight)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "model"], "no temporary folder is left"


NOT_IN_CONFIG = "not supported by a Hugging Face folder"
LAYERED = dataclasses.replace(hf.BASE, layers=LayersConfig(pattern=("nope",)))
SAVES = {  # what makes a decoder, and the fault
    f"distance=string: {NOT_IN_CONFIG}": lambda: hf.decoder(distance=distance("string", shift=20, window=4)),
    f"distance.log_n=64: {NOT_IN_CONFIG}": lambda: hf.decoder(distance=distance("plain", log_n=64)),
    f"frequencies=entropy_abf: {NOT_IN_CONFIG}": lambda: Decoder(
        hf.BASE, frequencies=frequencies("entropy_abf", theta=500.0, train_len=16, head_dim=16)
    ),
    f"frequencies.length=100: {NOT_IN_CONFIG}": lambda: Decoder(
        hf.BASE, frequencies=hf.decoder("dynamic_ntk").frequencies.at_length(100)
    ),
    'model.layers.pattern=["nope"]: no family': lambda: hf.decoder(cfg=LAYERED),
    "train_len=128: must be 64, that of the frequencies": lambda: hf.decoder("dynamic_ntk"),
}


@pytest.mark.parametrize("rule", SAVES)
def test_positions_that_a_folder_cannot_express_are_refused_by_name(rule, tmp_path):
    with refused(rule, error=ConfigError):
        save_pretrained(SAVES[rule](), tmp_path / "model", train_len=128 if "train_len" in rule else None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("kept")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with refused(f"{path}: is not empty", error=CheckpointError):
            save_pretrained(hf.decoder(), path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    save_pretrained(hf.decoder(), tmp_path / "empty")
    save_pretrained(hf.decoder(), tmp_path / "new" / "model")
    hf.assert_same_state(load_pretrained(tmp_path / "empty"), load_pretrained(tmp_path / "new" / "model"))


def rope(**values):
    return {"rope_scaling": values}


SETTINGS = [  # what config.json holds, and the faults
    ({"model_type": "gemma2"}, "model_type=gemma2: must be one of llama, qwen3; {}lab.loading.open_model"),
    ({"attention_bias": True}, "attention_bias=True: must be false for llama"),
    ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}: must be left out"),
    (MISTRAL | {"sliding_window": 0}, "window=0: must be >= 1; Tokens that window layers see"),
    (QWEN2 | {"use_sliding_window": True, "sliding_window": 16}, f"use_sliding_window=True: must be false, {WHOLE}"),
    (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types="),
    ({"mlp_bias": True}, "mlp_bias=True: must be false; "),
    ({"max_position_embeddings": None}, "max_position_embeddings=None: must be a whole number of tokens; "),
    ({"vocab_size": None}, "vocab_size=None: must be a whole number{}"),
    ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.25}}, "partial_rotary_factor=0.25: must{}"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor=0.5: must be >= 1"),
    ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention: must be the same in all layers"),
    ({"rope_scaling": [1]}, "rope_scaling=[1]: must be an object or null"),
    ({"head_dim": 7}, "n_heads=4: head_dim 7 must be even"),
    (
        {"hidden_act": "relu", **rope(type="su")},
        f"hidden_act=relu: {SILU}",
        f"rope_type=su: {TYPES}, or frequencies passed to load_pretrained",
    ),
    ({"rms_norm_eps": None}, "norm_eps=None: must be a number"),
]


@pytest.mark.parametrize(
    ("settings", "rules"), [pytest.param(own, rules, id=rules[0].partition(":")[0]) for own, *rules in SETTINGS]
)
def test_settings_that_are_not_understood_are_refused_by_name(settings, rules, folder):
    hf.edit(folder, **settings)
    with refused(*rules, error=ConfigError):
        load_pretrained(folder)


def test_frequencies_of_another_size_are_refused(folder):
    with refused("frequencies.head_dim=16: must be 8", error=ConfigError):
        load_pretrained(folder, frequencies=frequencies("rope", head_dim=16))


def drop(*names):
    return lambda tensors: [tensors.pop(name) for name in names]


LAYER = "model.layers.{}.self_attn.{}_proj.weight".format
Q = LAYER(1, "q")
OTHER = "=[16, 32]: must be [32, 32]"
TENSORS = {  # a change of the tensors, one of config.json, and the faults
    "no_head": (drop("lm_head.weight"), {}, "lm_head.weight=missing: must be [61, 32]"),
    "left_over": (
        lambda t: t.update({"q.bias": torch.ones(32)}),
        {},
        "q.bias=[32]: must be absent; take config.json and",
    ),
    "type": (lambda t: t.update({Q: t[Q].to(torch.int8)}), {}, f"{Q}=I8: must be one of F64, F32, F16, BF16"),
    "another_head": (drop(), {"tie_word_embeddings": True}, "lm_head.weight: must equal model.embed_tokens.weight"),
    "several": (
        drop("model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"),
        {"num_key_value_heads": 4},
        *(f"{LAYER(0, kind)}{OTHER}" for kind in "kv"),
        "model.layers.0.mlp.up_proj.weight=missing: must be [40, 32]",
        "model.layers.1.input_layernorm.weight=missing: must be [32]",
        *(f"{LAYER(1, kind)}{OTHER}" for kind in "kv"),
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(case, folder):
    change, settings, *rules = TENSORS[case]
    hf.edit_tensors(folder, change)
    hf.edit(folder, **settings)
    with refused(*rules, error=CheckpointError):
        load_pretrained(folder)


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def lose_a_shard(folder):
    save_sharded(load_pretrained(folder), folder.parent / "sharded")
    shutil.rmtree(folder)
    (folder.parent / "sharded").rename(folder)
    (folder / "model-00002-of-00004.safetensors").unlink()


FILES = {  # damage to the folder, and the fault after the folder's name
    "config": (rename("config.json", "params.json"), ": holds no config.json"),
    "broken_config": (lambda folder: (folder / "config.json").write_text("{"), "/config.json: cannot be read ({})"),
    "pickle": (rename(WEIGHTS, "pytorch_model.bin"), f": has no {WEIGHTS} and no {INDEX}; pip install transformers"),
    "cut": (lambda folder: os.truncate(folder / WEIGHTS, 9000), f"/{WEIGHTS}: cannot be read ({{}})"),
    "shard": (lose_a_shard, "/model-00002-of-00004.safetensors: cannot be read ({})"),
    "index": (lambda folder: rename(WEIGHTS, INDEX)(folder).write_text("{"), f"/{INDEX}: cannot be read ({{}})"),
}


@pytest.mark.parametrize(("damage", "rule"), FILES.values(), ids=FILES)
def test_files_that_are_missing_or_broken_are_refused_by_name(damage, rule, folder):
    damage(folder)
    with refused(f"{folder}{rule}", error=CheckpointError):
        load_pretrained(folder)
