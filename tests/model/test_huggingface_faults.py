"""What is not understood in a Hugging Face folder is refused by name, in one line."""

import shutil

import pytest
import torch

from lab.errors import CheckpointError, ConfigError
from lab.model.huggingface import load_pretrained, save_pretrained
from lab.positions import frequencies
from tests.model.folders import ROPES, YARN, edit, edit_tensors
from tests.refusals import refused

LLAMA3 = {name: value for name, value in ROPES["llama3"].items() if name != "low_freq_factor"}
TYPES = "must be one of default, linear, dynamic, yarn, llama3, longrope"
WHOLE = "attention sees all preceding tokens"
PAIRS = "must be 1, the lab rotates every pair"
SILU = "must be silu, the feed-forward is SwiGLU"
NO_NUMBER = "must be a number"
MISTRAL, QWEN2 = {"model_type": "mistral"}, {"model_type": "qwen2"}


def rope(**values):
    return {"rope_scaling": values}


SETTINGS = [  # what config.json holds, and the faults
    ({"model_type": "gemma2"}, "model_type=gemma2: must be one of llama, mistral, qwen2, qwen3"),
    ({"hidden_act": "gelu"}, f"hidden_act=gelu: {SILU}"),
    ({"attention_bias": True}, "attention_bias=True: must be false for llama"),
    ({"mlp_bias": True}, "mlp_bias=True: must be false for llama"),
    (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "quantization_config.quant_method=gptq: must be left out",
    ),
    (MISTRAL | {"sliding_window": 16}, f"sliding_window=16: must be null or >= max_position_embeddings=64, {WHOLE}"),
    (
        MISTRAL | {"max_position_embeddings": 8192},
        f"sliding_window=4096: must be null or >= max_position_embeddings=8192, {WHOLE}",
    ),
    (QWEN2 | {"use_sliding_window": True, "sliding_window": 16}, f"use_sliding_window=True: must be false, {WHOLE}"),
    (
        {"layer_types": ["full_attention", "sliding_attention"]},
        f"layer_types[1]=sliding_attention: must be full_attention, {WHOLE}",
    ),
    ({"partial_rotary_factor": 0.5}, f"partial_rotary_factor=0.5: {PAIRS}"),
    ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.25}}, f"partial_rotary_factor=0.25: {PAIRS}"),
    (rope(type="longrope", long_factor=[1.0] * 4), "rope_scaling.short_factor: missing, rope_type longrope needs it"),
    (
        rope(type="longrope", short_factor=[1.0, "1"], long_factor=3.0),
        "rope_scaling.short_factor: must be a list of numbers",
        "rope_scaling.long_factor: must be a list of numbers",
    ),
    (
        rope(type="longrope", short_factor=[1.0] * 3, long_factor=[1.0] * 4),
        "short_factor=3 numbers: must be 4, half of head_dim",
    ),
    ({"rope_parameters": {"rope_type": "proportional"}}, f"rope_parameters.rope_type=proportional: {TYPES}"),
    (
        {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        "rope_parameters.mrope_section=[1, 1, 2]: unknown for rope_type default",
    ),
    (rope(type="linear", factor=2.0, beta_fast=8), "rope_scaling.beta_fast=8: unknown for rope_type linear"),
    (rope(**LLAMA3), "rope_scaling.low_freq_factor: missing, rope_type llama3 needs it"),
    (rope(type="yarn", factor=None), f"rope_scaling.factor=None: {NO_NUMBER}"),
    (rope(**YARN | {"truncate": None}), "rope_scaling.truncate=None: must be true or false"),
    ({"rope_parameters": None, "rope_theta": "1e4"}, f"rope_theta=1e4: {NO_NUMBER}"),
    ({"hidden_size": "32"}, "hidden_size=32: must be a whole number >= 1"),
    ({"max_position_embeddings": None}, "max_position_embeddings=None: must be a whole number >= 1"),
    ({"rms_norm_eps": None}, f"rms_norm_eps=None: {NO_NUMBER}"),
    ({"head_dim": 7}, "n_heads=4: head_dim 7 must be even"),
    (
        {"hidden_act": "relu", "mlp_bias": True, **rope(type="su")},
        f"hidden_act=relu: {SILU}",
        "mlp_bias=True: must be false for llama",
        f"rope_scaling.rope_type=su: {TYPES}",
    ),
]


@pytest.mark.parametrize(
    ("settings", "rules"), [pytest.param(own, rules, id=rules[0].partition(":")[0]) for own, *rules in SETTINGS]
)
def test_settings_that_are_not_understood_are_refused_by_name(settings, rules, folder):
    edit(folder, **settings)
    with refused(*rules, error=ConfigError):
        load_pretrained(folder)


def test_parameters_out_of_range_are_refused_by_the_method(folder):
    edit(folder, rope_scaling={"type": "linear", "factor": 0.5})
    with pytest.raises(ConfigError, match=r"^factor=0.5: must be >= 1"):
        load_pretrained(folder)


def test_a_missing_size_and_foreign_frequencies_are_refused(folder):
    with refused("frequencies.head_dim=16: must be 8, that of the folder", error=ConfigError):
        load_pretrained(folder, frequencies=frequencies("rope", head_dim=16))
    edit(folder, drop=["vocab_size"])
    with refused("vocab_size: missing from config.json", error=ConfigError):
        load_pretrained(folder)


def drop(*names):
    return lambda tensors: [tensors.pop(name) for name in names]


def put(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


LAYER = "model.layers.{}.self_attn.{}_proj.weight".format
Q = LAYER(1, "q")
MISSING, OTHER = "missing from the weights", "=(16, 32): must be (32, 32)"
TENSORS = {  # a change of the tensors, one of config.json, and the faults
    "missing": (drop("model.norm.weight"), {}, f"model.norm.weight: {MISSING}"),
    "no_head": (drop("lm_head.weight"), {}, f"lm_head.weight: {MISSING}"),
    "left_over": (put("q.bias", torch.ones(32)), {}, "q.bias: not part of the model that config.json describes"),
    "shape": (put(Q, torch.ones(32, 31)), {}, f"{Q}=(32, 31): must be (32, 32)"),
    "type": (put(Q, torch.ones(32, 32, dtype=torch.int8)), {}, f"{Q}=I8: must be F64, F32, F16, BF16"),
    "another_head": (
        lambda t: None,
        {"tie_word_embeddings": True},
        "lm_head.weight: must equal model.embed_tokens.weight",
    ),
    "several": (
        drop("model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"),
        {"num_key_value_heads": 4},
        *(f"{LAYER(0, kind)}{OTHER}" for kind in "kv"),
        f"model.layers.0.mlp.up_proj.weight: {MISSING}",
        f"model.layers.1.input_layernorm.weight: {MISSING}",
        *(f"{LAYER(1, kind)}{OTHER}" for kind in "kv"),
    ),
}


@pytest.mark.parametrize(
    ("change", "settings", "rules"), [(*case[:2], case[2:]) for case in TENSORS.values()], ids=TENSORS
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, settings, rules, folder):
    edit_tensors(folder, change)
    edit(folder, **settings)
    with refused(*rules, error=CheckpointError):
        load_pretrained(folder)


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def truncate(folder):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-8])


def lose_a_shard(folder):
    save_pretrained(load_pretrained(folder), folder.parent / "sharded", shard_bytes=20_000)
    shutil.rmtree(folder)
    (folder.parent / "sharded").rename(folder)
    (folder / "model-00002-of-00004.safetensors").unlink()


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = ": holds pytorch_model.bin only, a pickle"
FILES = {  # damage to the folder, and the fault after the folder's name
    "folder": (shutil.rmtree, ": no such folder"),
    "config": (rename("config.json", "params.json"), ": holds no config.json"),
    "broken_config": (
        lambda folder: (folder / "config.json").write_text("{"),
        "/config.json: cannot be read (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
    ),
    "pickle": (rename(WEIGHTS, "pytorch_model.bin"), PICKLE),
    "sharded_pickle": (rename(WEIGHTS, "pytorch_model-00001-of-00001.bin"), PICKLE),
    "weights": (rename(WEIGHTS, "weights.safetensors"), f": holds no {WEIGHTS} and no {INDEX}"),
    "cut": (truncate, f"/{WEIGHTS}: cannot be read ({{}})"),
    "shard": (lose_a_shard, f"/model-00002-of-00004.safetensors: missing, {INDEX} names it"),
    "index": (
        lambda folder: rename(WEIGHTS, INDEX)(folder).write_text("{}"),
        f"/{INDEX}: cannot be read (KeyError('weight_map'))",
    ),
}


@pytest.mark.parametrize(("damage", "rule"), FILES.values(), ids=FILES)
def test_files_that_are_missing_or_broken_are_refused_by_name(damage, rule, folder):
    damage(folder)
    with refused(f"{folder}{rule}", error=CheckpointError):
        load_pretrained(folder)
