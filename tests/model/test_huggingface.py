"""Loading Hugging Face folders."""

import pytest
import torch

from lab.core.errors import CheckpointError, ConfigError
from lab.loading import open_model
from lab.model.huggingface import load_pretrained, save_pretrained
from lab.model.huggingface.foreign import Foreign
from lab.positions import distance, frequencies
from tests.model import folders as hf
from tests.model.test_foreign import tiny


@pytest.mark.parametrize(
    ("heads", "tied"),
    [({}, False), ({"num_key_value_heads": 4}, True), ({"num_key_value_heads": 1, **hf.HEADS_OF_16}, False)],
    ids=["grouped", "multi_head_tied", "head_dim"],
)
@pytest.mark.parametrize("family", hf.CLASSES)
def test_logits_equal_those_of_transformers(family, heads, tied, tmp_path):
    model = hf.theirs(family, tie_word_embeddings=tied, **heads)
    model.save_pretrained(tmp_path / "model")
    ours = load_pretrained(tmp_path / "model")
    hf.assert_same_logits(ours, model)
    assert (ours.head.weight is ours.embedding.weight) == tied
    assert ours.cfg.qkv == {"qwen2": "bias", "qwen3": "norm"}.get(family, "plain")
    assert ours.cfg.n_parameters() == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("window", [16, 64, 100])
def test_a_mistral_with_a_sliding_window_has_it_beyond_its_longest_position_too(window, tmp_path):
    """Yarn-Mistral's window is its longest position; here 64 positions and 150 tokens."""
    rope = {**hf.ROPES["yarn"], "rope_theta": 1000.0}
    model = hf.theirs("mistral", sliding_window=window, rope_parameters=rope)
    model.save_pretrained(tmp_path / "model")
    ours = open_model(tmp_path / "model").model
    hf.assert_same_logits(ours, model, (9, 64, 65, 101, 150))
    save_pretrained(ours, tmp_path / "again")
    hf.assert_same_logits(ours, hf.opened(tmp_path / "again"), (150,))
    with pytest.raises(ConfigError, match="distance.method=rerope: would change nothing"):
        load_pretrained(tmp_path / "model", distance=distance("rerope", window=9))


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *((kind, "rope_parameters") for kind in hf.ROPES),
        *((kind, "rope_scaling.rope_type") for kind in ("default", "yarn_in_full", "llama3")),
        *((kind, "rope_scaling.type") for kind in ("linear", "dynamic", "yarn")),
    ],
)
def test_every_rope_type_in_both_forms_of_config_json(kind, form, tmp_path):
    rope = {**hf.ROPES[kind], "rope_theta": 1000.0}
    model = hf.theirs(rope_parameters=rope, **hf.HEADS_OF_16)
    model.save_pretrained(tmp_path / "model")
    if form != "rope_parameters":
        scaling = {name: value for name, value in hf.ROPES[kind].items() if name != "rope_type"}
        scaling[form.split(".")[1]] = hf.ROPES[kind]["rope_type"]
        scaling = None if kind == "default" else scaling
        hf.edit(tmp_path / "model", drop=["rope_parameters"], rope_theta=1000.0, rope_scaling=scaling)
    ours = load_pretrained(tmp_path / "model")
    hf.assert_same_logits(ours, model, hf.lengths_for(kind))
    if kind not in {"default", "dynamic"}:
        plain = load_pretrained(tmp_path / "model", frequencies=frequencies("rope", head_dim=16, theta=1000.0))
        tokens = hf.tokens_of(50)
        assert float((hf.logits_of(plain, tokens) - hf.logits_of(ours, tokens)).abs().max()) > hf.APART


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
NESTED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
PUBLISHED = {  # rope_scaling, the rest of config.json, whether transformers runs the model, and what a line names
    "yarn_llama_2": ({**YARN, "finetuned": True}, {}, False, ""),
    "two_mscales": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}, {}, False, ""),
    "one_mscale": ({**YARN, "mscale": 0.7, "mscale_all_dim": 0}, {}, False, ""),
    "own_factor": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "attention_factor": 1.3}, {}, False, ""),
    "factor_null": ({**YARN, "factor": None, "original_max_position_embeddings": 8}, {}, False, ""),
    "nulls": ({**YARN, "truncate": None, "beta_fast": None, "beta_slow": 0}, {}, False, ""),
    "length_at_the_top": (YARN, {"original_max_position_embeddings": 16}, False, ""),
    "betas_in_disorder": ({**YARN, "beta_fast": 1, "beta_slow": 32}, {}, True, ""),
    "shrunk": ({"type": "linear", "factor": 0.5}, {}, True, ""),
    "mrope": ({"rope_type": "default", "mrope_section": [2, 3, 3]}, {}, False, ""),
    "factor_of_none": ({"rope_type": "default", "factor": None}, {}, False, ""),
    "nested": ({}, {"layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": NESTED}}, True, ""),
    "qwen_1m": ({}, {"dual_chunk_attention_config": {"chunk_size": 8}}, False, "chunk_attention_config is ignored"),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_rope_settings_of_published_models_are_read_as_transformers_reads_them(case, tmp_path, capsys):
    scaling, others, by_transformers, line = PUBLISHED[case]
    hf.theirs(**hf.HEADS_OF_16).save_pretrained(tmp_path / "model")
    dropped = set() if "rope_parameters" in others else {"rope_parameters"}
    hf.edit(tmp_path / "model", dropped, rope_theta=100.0, rope_scaling=scaling, **others)
    model = open_model(tmp_path / "model").decoder
    assert isinstance(model, Foreign) == by_transformers
    for length in (9, 60):
        tokens = hf.tokens_of(length)
        with torch.no_grad():
            torch.testing.assert_close(model(tokens), hf.opened(tmp_path / "model")(tokens).logits, rtol=0, atol=hf.TOL)
    err = capsys.readouterr().err
    assert (line in err) if line else "is ignored" not in err


SILENT = {  # by family, besides max_position_embeddings
    "llama": ["num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_parameters"],
    "mistral": ["num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "head_dim"],
    "qwen2": ["num_key_value_heads", "rms_norm_eps", "use_sliding_window", "sliding_window", "layer_types"],
    "qwen3": ["num_key_value_heads", "rms_norm_eps", "use_sliding_window", "sliding_window", "head_dim"],
}


@pytest.mark.parametrize("family", SILENT)
def test_what_config_json_leaves_out_is_what_transformers_assumes(family, tmp_path):
    heads, kv_heads = {"mistral": (16, 8)}.get(family, (32, 32))
    sizes = {"hidden_size": 64, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-6}
    sizes |= {"head_dim": 128} if family == "qwen3" else {}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    hf.theirs(family, rope_parameters=rope, **sizes).save_pretrained(tmp_path)
    hf.edit(tmp_path, drop=[*SILENT[family], "max_position_embeddings"])
    hf.assert_same_logits(load_pretrained(tmp_path), hf.opened(tmp_path))


def test_folders_of_early_llamas_hold_tables_that_are_passed_over(folder):
    hf.edit_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    hf.assert_same_logits(load_pretrained(folder), hf.opened(folder))


@pytest.mark.parametrize("copy", ["single", "part", "other"])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_two_copies_of_weights_are_refused_and_files_that_the_index_does_not_list_are_not_read(family, copy, tmp_path):
    model = hf.theirs() if family == "llama" else tiny(family)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    first, *_, last = sorted(tmp_path.glob("*.safetensors"))
    tensors = {name: torch.ones_like(tensor) for name, tensor in hf.safetensors_torch.load_file(first).items()}
    if copy == "part":
        tensors |= hf.safetensors_torch.load_file(last)
    names = {"single": "model.safetensors", "part": last.name, "other": "model-00099-of-00099.safetensors"}
    hf.safetensors_torch.save_file(tensors, tmp_path / names[copy], metadata={"format": "pt"})
    if copy == "other":
        ours, tokens = open_model(tmp_path).model, hf.tokens_of(20)
        torch.testing.assert_close(hf.logits_of(ours, tokens), hf.logits_of(model, tokens), rtol=0, atol=hf.TOL)
        return
    with pytest.raises(CheckpointError, match=r"two (copies|files) .*; delete"):
        open_model(tmp_path)
