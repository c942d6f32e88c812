"""Every family that docs/evaluation_details.md lists does what its row says, in a small model of random weights."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from eval.distance import FoundByDistance
from eval.entropy import attention_entropy
from lab.core.errors import ConfigError
from lab.data.preparation import shard_folder
from lab.model.huggingface.foreign import Foreign
from lab.positions import distance
from tests.model.folders import edit
from tests.model.test_foreign import ROTARY, WIDE, log_probs, tiny

TEXT = (Path(__file__).parents[2] / "docs" / "evaluation_details.md").read_text()
PAGE = TEXT.split("## Other positions")[1].partition("\n## ")[0]
TABLE = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 4]
ROWS = TABLE[1:]
OF_ROWS = [(name, other, entropy) for kinds, other, entropy in ROWS for name in re.findall(r"`(\w+)`", kinds)]
OF_ROWS.append(("sliding mistral", *next(row[1:] for row in ROWS if row[0].startswith("Mistral with"))))
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
OWN = {  # settings by which a small model shows what its family does
    **{name: {} for name in ("bloom", "cohere", "falcon", "gpt2", "gpt_neox", "mamba", "opt", "phi")},
    "cohere2": {"num_hidden_layers": 4, "sliding_window": 16},
    "deepseek_v2": {**LATENT, **EXPERTS, "num_key_value_heads": 4},
    "deepseek_v3": {**LATENT, **EXPERTS, "num_key_value_heads": 4},
    "exaone4": {**WIDE, "num_hidden_layers": 4, "sliding_window": 16},
    "gemma3_text": {**WIDE, "num_hidden_layers": 6, "sliding_window": 16},
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "llama4_text": {**WIDE, "num_hidden_layers": 4, "num_local_experts": 2, "intermediate_size_mlp": 64},
    "mistral": {**WIDE, "sliding_window": None},
    "mpt": {"d_model": 48, "n_heads": 4, "n_layers": 3, "max_seq_len": 64},
    "olmo3": {**WIDE, "num_hidden_layers": 4, "sliding_window": 16},
    "smollm3": ROTARY["smollm3"],
}
STRING = distance("string", shift=15, window=4)


def small(name):
    if name == "sliding mistral":
        return tiny("mistral", **WIDE, sliding_window=16)
    return tiny(name, **OWN.get(name, WIDE))


def outcome(work):
    try:
        return work()
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(("name", "other", "entropy"), OF_ROWS, ids=[name for name, *_ in OF_ROWS])
def test_a_family_does_what_its_row_says(name, other, entropy):
    model = small(name)
    text = torch.randint(1, 97, (1, 45), generator=torch.Generator().manual_seed(0))
    before, foreign = log_probs(model, text), Foreign(model)
    curves = outcome(lambda: attention_entropy(foreign, text))
    if entropy == "runs":
        model.set_attn_implementation("eager")
        with torch.no_grad():
            weights = [w for w in model(text, output_attentions=True, use_cache=False).attentions if w is not None]
        for found, p in zip(curves[0], weights, strict=True):
            torch.testing.assert_close(found, torch.special.entr(p[0].double()).sum(-1).mean(0), rtol=0, atol=2e-5)
    else:
        assert type(model).__name__ in curves
        assert entropy.removeprefix("rejected: ") in curves
    refusal = outcome(lambda: setattr(foreign, "distance", STRING))
    if other == "all methods":
        assert float((log_probs(model, text) - before).abs().max()) > 1e-3
    else:
        assert re.split(", which", other.removeprefix("rejected: "))[0] in refusal
        assert torch.allclose(log_probs(model, text), before, atol=1e-5)


@pytest.mark.parametrize("family", ["bloom", "mamba"])
def test_a_window_serves_a_family_that_states_none(family, prepared, tmp_path, capsys):
    tiny(family, **OWN[family], vocab_size=400).save_pretrained(tmp_path)
    edit(tmp_path, drop=["max_position_embeddings"])  # which neither family has
    shutil.copy(shard_folder(prepared) / "tokenizer.json", tmp_path)
    (tmp_path / "essay.txt").write_text("A plain sentence about the sea and the boats on it. " * 40)
    words = [str(tmp_path), f"--haystack={tmp_path / 'essay.txt'}", "-o", str(tmp_path / "out"), "--tests=2"]
    assert FoundByDistance.main([*words, "--points=2", "--window=192"]) == 0
    assert FoundByDistance.main([*words, "--points=2"]) == 2
    assert "states no training window" in capsys.readouterr().err
