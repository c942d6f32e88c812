"""What is not understood in a Hugging Face folder is refused by name, in one line."""

import shutil

import pytest
import torch

from lab.errors import CheckpointError, ConfigError
from lab.model.huggingface import load_pretrained, save_pretrained
from lab.positions import frequencies
from tests.model.folders import ROPES, YARN, edit, edit_tensors

LLAMA3 = {name: value for name, value in ROPES["llama3"].items() if name != "low_freq_factor"}
TYPES = "must be one of default, linear, dynamic, yarn, llama3; give load_pretrained the frequencies"
WHOLE = "attention sees the whole past; use another model"
SETTINGS = {
    "family": (
        {"model_type": "gemma2"},
        "model_type=gemma2: must be one of llama, mistral, qwen2; use a model of these families",
    ),
    "activation": (
        {"hidden_act": "gelu"},
        "hidden_act=gelu: must be silu, the feed-forward is SwiGLU; use another model",
    ),
    "attention_bias": ({"attention_bias": True}, "attention_bias=True: must be false for llama; use another model"),
    "mlp_bias": ({"mlp_bias": True}, "mlp_bias=True: must be false for llama; use another model"),
    "quantized": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "quantization_config.quant_method=gptq: must be left out; use the model's float weights",
    ),
    "mistral_window": (
        {"model_type": "mistral", "sliding_window": 16},
        f"sliding_window=16: must be null or >= max_position_embeddings=64, {WHOLE}",
    ),
    "mistral_silent_window": (
        {"model_type": "mistral", "max_position_embeddings": 8192},
        f"sliding_window=4096: must be null or >= max_position_embeddings=8192, {WHOLE}",
    ),
    "qwen2_window": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16},
        f"use_sliding_window=True: must be false, {WHOLE}",
    ),
    "layer_types": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        f"layer_types[1]=sliding_attention: must be full_attention, {WHOLE}",
    ),
    "partial": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor=0.5: must be 1, the lab rotates every pair; use another model",
    ),
    "partial_inside": (
        {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.25}},
        "partial_rotary_factor=0.25: must be 1, the lab rotates every pair; use another model",
    ),
    "longrope": ({"rope_scaling": {"type": "longrope"}}, f"rope_scaling.rope_type=longrope: {TYPES}"),
    "proportional": (
        {"rope_parameters": {"rope_type": "proportional"}},
        f"rope_parameters.rope_type=proportional: {TYPES}",
    ),
    "unknown_key": (
        {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        "rope_parameters.mrope_section=[1, 1, 2]: unknown for rope_type default; give load_pretrained the frequencies",
    ),
    "key_of_another_type": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 8}},
        "rope_scaling.beta_fast=8: unknown for rope_type linear; give load_pretrained the frequencies",
    ),
    "missing_key": (
        {"rope_scaling": LLAMA3},
        "rope_scaling.low_freq_factor: missing, rope_type llama3 needs it; mend config.json",
    ),
    "null_factor": (
        {"rope_scaling": {"type": "yarn", "factor": None}},
        "rope_scaling.factor=None: must be a number; mend config.json",
    ),
    "truncate": (
        {"rope_scaling": {**YARN, "truncate": None}},
        "rope_scaling.truncate=None: must be true or false; mend config.json",
    ),
    "theta": ({"rope_parameters": None, "rope_theta": "1e4"}, "rope_theta=1e4: must be a number; mend config.json"),
    "size": ({"hidden_size": "32"}, "hidden_size=32: must be a whole number >= 1; mend config.json"),
    "positions": (
        {"max_position_embeddings": None},
        "max_position_embeddings=None: must be a whole number >= 1; mend config.json",
    ),
    "norm": ({"rms_norm_eps": None}, "rms_norm_eps=None: must be a number; mend config.json"),
    "odd_heads": ({"head_dim": 7}, "n_heads=4: head_dim 7 must be even; use another number of heads"),
    "several": (
        {"hidden_act": "relu", "mlp_bias": True, "rope_scaling": {"type": "su"}},
        "hidden_act=relu: must be silu, the feed-forward is SwiGLU; use another model\n"
        "mlp_bias=True: must be false for llama; use another model\n"
        f"rope_scaling.rope_type=su: {TYPES}",
    ),
}


@pytest.mark.parametrize(("settings", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_are_not_understood_are_refused_by_name(settings, message, folder):
    edit(folder, **settings)
    with pytest.raises(ConfigError) as caught:
        load_pretrained(folder)
    assert str(caught.value) == message


def test_parameters_out_of_range_are_refused_by_the_method(folder):
    edit(folder, rope_scaling={"type": "linear", "factor": 0.5})
    with pytest.raises(ConfigError, match=r"^factor=0.5: must be >= 1"):
        load_pretrained(folder)


def test_a_missing_size_and_foreign_frequencies_are_refused(folder):
    with pytest.raises(ConfigError) as caught:
        load_pretrained(folder, frequencies=frequencies("rope", head_dim=16))
    assert str(caught.value) == "frequencies.head_dim=16: must be 8, that of the folder; build them with it"
    edit(folder, drop=["vocab_size"])
    with pytest.raises(ConfigError) as caught:
        load_pretrained(folder)
    assert str(caught.value) == "vocab_size: missing from config.json; copy the folder again"


def drop(*names):
    return lambda tensors: [tensors.pop(name) for name in names]


Q = "model.layers.1.self_attn.q_proj"
ONE_MODEL = "take config.json and weights of one model"
TENSORS = {
    "missing": (drop("model.norm.weight"), {}, "model.norm.weight: missing from the weights; copy the folder again"),
    "no_head": (
        drop("lm_head.weight"),
        {},
        "lm_head.weight: missing from the weights; set tie_word_embeddings to true in config.json if it is the "
        "embedding",
    ),
    "left_over": (
        lambda t: t.update({f"{Q}.bias": torch.ones(32)}),
        {},
        f"{Q}.bias: not part of the model that config.json describes; {ONE_MODEL}",
    ),
    "shape": (
        lambda t: t.update({f"{Q}.weight": torch.ones(32, 31)}),
        {},
        f"{Q}.weight=(32, 31): must be (32, 32); {ONE_MODEL}",
    ),
    "type": (
        lambda t: t.update({f"{Q}.weight": torch.ones(32, 32, dtype=torch.int8)}),
        {},
        f"{Q}.weight=I8: must be F64, F32, F16, BF16; use the model's float weights",
    ),
    "another_head": (
        lambda t: None,
        {"tie_word_embeddings": True},
        "lm_head.weight: must equal model.embed_tokens.weight; set tie_word_embeddings to false in config.json",
    ),
    "several": (
        drop("model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"),
        {"num_key_value_heads": 4},
        "".join(
            f"{name}: missing from the weights; copy the folder again\n"
            if isinstance(shape, str)
            else f"{name}=(16, 32): must be (32, 32); {ONE_MODEL}\n"
            for name, shape in [
                ("model.layers.0.self_attn.k_proj.weight", (16, 32)),
                ("model.layers.0.self_attn.v_proj.weight", (16, 32)),
                ("model.layers.0.mlp.up_proj.weight", "missing"),
                ("model.layers.1.input_layernorm.weight", "missing"),
                ("model.layers.1.self_attn.k_proj.weight", (16, 32)),
                ("model.layers.1.self_attn.v_proj.weight", (16, 32)),
            ]
        ).strip(),
    ),
}


@pytest.mark.parametrize(("change", "settings", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(change, settings, message, folder):
    edit_tensors(folder, change)
    edit(folder, **settings)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(folder)
    assert str(caught.value) == message


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def lose_a_shard(folder):
    save_pretrained(load_pretrained(folder), folder.parent / "sharded", shard_bytes=20_000)
    shutil.rmtree(folder)
    (folder.parent / "sharded").rename(folder)
    (folder / "model-00002-of-00004.safetensors").unlink()


FILES = {
    "folder": (shutil.rmtree, "{}: no such folder; give the folder of a Hugging Face model"),
    "config": (
        rename("config.json", "params.json"),
        "{}: holds no config.json; give the folder of a Hugging Face model",
    ),
    "broken_config": (
        lambda folder: (folder / "config.json").write_text("{"),
        "{}/config.json: cannot be read (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "copy the folder again",
    ),
    "pickle": (
        rename("model.safetensors", "pytorch_model.bin"),
        "{}: holds pytorch_model.bin only, a pickle; convert it to safetensors",
    ),
    "sharded_pickle": (
        rename("model.safetensors", "pytorch_model-00001-of-00001.bin"),
        "{}: holds pytorch_model.bin only, a pickle; convert it to safetensors",
    ),
    "weights": (
        rename("model.safetensors", "weights.safetensors"),
        "{}: holds no model.safetensors and no model.safetensors.index.json; give a folder with weights",
    ),
    "shard": (
        lose_a_shard,
        "{}/model-00002-of-00004.safetensors: missing, model.safetensors.index.json names it; copy the folder again",
    ),
    "index": (
        lambda folder: rename("model.safetensors", "model.safetensors.index.json")(folder).write_text("{}"),
        "{}/model.safetensors.index.json: cannot be read (KeyError('weight_map')); copy the folder again",
    ),
}


@pytest.mark.parametrize(("damage", "message"), FILES.values(), ids=FILES)
def test_files_that_are_missing_or_broken_are_refused_by_name(damage, message, folder):
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(folder)
    assert str(caught.value) == message.format(folder)


def test_a_cut_file_is_refused_in_one_line(folder):
    truncate(folder)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(folder)
    assert str(caught.value).startswith(f"{folder}/model.safetensors: cannot be read (")
    assert str(caught.value).endswith("); copy the folder again")
    assert "\n" not in str(caught.value)
