"""Causal models of transformers as they are: their own numbers, and attention by definition under other positions."""

import sys
from functools import partial

import pytest
import torch

from lab.core.errors import CheckpointError, ConfigError
from lab.loading import open_model
from lab.model.attention.inspection import token_scores
from lab.model.generate import greedy
from lab.model.huggingface import apply
from lab.model.huggingface.config import model_settings
from lab.model.huggingface.foreign import Foreign, load_foreign
from lab.positions import distance, frequencies
from tests.model.folders import edit
from tests.refusals import refused

transformers = pytest.importorskip("transformers")
TOL = 1e-5  # on log-probabilities, of a dozen float32 sums
SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ROTARY = {  # settings, and the share of a head's dimensions that is rotated
    "gpt_neox": ({"rotary_pct": 0.5}, 0.5),
    "phi": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1 / 3}}, 1 / 3),
    "olmo": ({"num_key_value_heads": 2, "clip_qkv": 2.0}, 1),
    "olmo2": ({}, 1),
    "gemma": ({"head_dim": 16, "num_key_value_heads": 1}, 1),
    "granite": ({"attention_multiplier": 0.1}, 1),
}
OTHERS = {name: {} for name in ("gpt2", "bloom", "mamba", "falcon", "gemma3_text", "gptj")}
OTHERS["gptj"] = {"rotary_dim": 8}
OTHERS["gpt_oss"] = {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
METHODS = {
    "string": (distance("string", shift=15, window=4), {"method": "rope"}),
    "dca": (distance("dca", chunk=12, train_len=20), {"method": "rope"}),
    "self_extend": (distance("self_extend", group=3, window=7), {"method": "rope"}),
    "leaky_rerope": (distance("leaky_rerope", window=9, leak=3.0, log_n=20), {"method": "rope"}),
    "yarn": (distance("plain"), {"method": "yarn", "factor": 4.0, "train_len": 16}),
    "layers": (distance("rerope", window=9), {"method": "entropy_abf", "train_len": 16}),
}


def tiny(family, seed=0, **settings):
    config = transformers.AutoConfig.for_model(family, **SIZES | settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = transformers.GenerationConfig()
    for number, p in enumerate(model.parameters()):
        drawn = torch.randn(p.shape, generator=torch.Generator().manual_seed(number + seed))
        p.data = 0.16 * drawn + (p.data if p.ndim == 1 else 0.0)  # norms and biases about their own
    return model


@pytest.fixture(scope="module", params=ROTARY)
def rotary(request):
    settings, share = ROTARY[request.param]
    return tiny(request.param, **settings), share


def log_probs(model, text):
    with torch.no_grad():
        return model(text, use_cache=False).logits.double().log_softmax(-1)


def by_definition(model, text, method, turns, monkeypatch, neighbours=False):
    """Compute log-probabilities in float64; the model's rotation is left out and its attention is the definition's.

    Rotated are the first dimensions of a head in pairs (j, j + r / 2), or of `neighbours`, of layers that `use_rope`.
    """

    def attend(module, q, k, v, mask, scaling=None, **_):
        at, half = torch.arange(q.shape[2]), len(turns.inv_freq)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        angle = method.rel_pos(at, at)[..., None] * turns.inv_freq * bool(getattr(module, "use_rope", True))
        firsts, seconds = (slice(n, 2 * half, 2) if neighbours else slice(n * half, (n + 1) * half) for n in (0, 1))
        a, b, c, d = (x[..., part] for x in (q[:, :, :, None], k[:, :, None]) for part in (firsts, seconds))
        logits = ((a * c + b * d) * angle.cos() + (a * d - b * c) * angle.sin()).sum(-1)
        logits = logits + q[..., 2 * half :] @ k[..., 2 * half :].mT
        factor = method.logit_factor(at) * turns.logit_factor(at, module.layer_idx)
        logits = (logits * scaling * factor[:, None]).masked_fill(at > at[:, None], -torch.inf)
        return (logits.softmax(-1) @ v).transpose(1, 2), None

    home = sys.modules[type(model).__module__]
    with monkeypatch.context() as patch:
        patch.setattr(home, "apply_rotary_pos_emb", lambda q, k, *_, **__: (q, k))
        transformers.AttentionInterface.register("by_definition", attend)
        other = type(model)(model.config).double().eval()
        other.load_state_dict(model.state_dict())
        before = model.config._attn_implementation
        other.set_attn_implementation("by_definition")
        found = log_probs(other, text)
        model.config._attn_implementation = before
    return found


def turns_of(model, share, settings):
    head_dim = getattr(model.config, "head_dim", None) or 12
    theta = {} if settings["method"] == "entropy_abf" else {"theta": model.config.rope_parameters["rope_theta"]}
    return frequencies(head_dim=int(head_dim * share + 0.1), **theta, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_other_positions_are_those_of_the_definition_in_one_pass_and_from_the_cache(name, rotary, text, monkeypatch):
    model, share = rotary
    method, settings = METHODS[name]
    turns = turns_of(model, share, settings)
    expected = by_definition(model, text, method, turns, monkeypatch)
    foreign = Foreign(apply(model))
    plain = log_probs(model, text)
    foreign.install(foreign.own if settings["method"] == "rope" else turns, method)
    torch.testing.assert_close(log_probs(model, text), expected, rtol=0, atol=TOL)
    assert float((expected - plain).abs().max()) > 100 * TOL
    cache, parts = foreign.new_cache(2, 45), []
    with torch.no_grad():
        for part in text.split([20, 1, 1, 23], dim=1):
            parts.append(foreign(part, cache=cache).double().log_softmax(-1))
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=TOL)
    foreign.install(foreign.own, distance("plain"))
    assert torch.equal(log_probs(model, text), plain), "the model computes by itself again"


@pytest.mark.parametrize("family", [*ROTARY, *OTHERS])
def test_a_model_as_it_is_scores_and_answers_as_transformers(family, text, monkeypatch, capfd):
    model = tiny(family, **(OTHERS.get(family) or ROTARY.get(family, ({},))[0]))
    foreign = Foreign(model)
    targets = torch.where(torch.arange(45) % 3 == 1, text.roll(-1, 1), -100)
    targets[1, :20] = -100
    monkeypatch.setattr("lab.model.huggingface.foreign.MOST_LOGITS", 97 * 15)  # a row at a time
    logs = log_probs(model, text)
    losses, right, _ = token_scores(foreign, text, targets)
    own = -logs.gather(2, text.roll(-1, 1)[..., None])[..., 0]
    torch.testing.assert_close(losses, torch.where(targets >= 0, own, 0.0), rtol=0, atol=TOL)
    assert torch.equal(right > 0, (targets >= 0) & (logs.argmax(-1) == text.roll(-1, 1)))
    prompts = torch.cat([text[:1, :30].expand(3, -1), text[:, 30:].flatten()[:6].view(3, 2)], 1)  # a common beginning
    expected = prompts
    for _ in range(6):
        expected = torch.cat([expected, log_probs(model, expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(greedy(foreign, prompts, 6), expected[:, 32:])
    stop = int(expected[0, 33])
    answers = greedy(foreign, prompts, 6, stop)
    for row, whole in zip(answers.tolist(), expected[:, 32:].tolist(), strict=True):
        n = whole.index(stop) + 1 if stop in whole else 6
        assert row[:n] == whole[:n]
    if family in OTHERS:
        capfd.readouterr()
        with refused(f"model={type(model).__name__}: {{}}", error=ConfigError):
            foreign.distance = distance("string", shift=15, window=4)
        assert capfd.readouterr() == ("", ""), "no line of transformers besides"
        assert torch.equal(log_probs(model, text), logs), "a refused method leaves nothing behind"


def test_a_model_that_is_hardly_trained_is_judged_by_its_rotation_alone():
    served, other = tiny("gpt_neox"), tiny("hunyuan_v1_dense", head_dim=12)
    for p in [*served.parameters(), *other.parameters()]:
        p.data *= 1.0 if p.ndim == 1 else 0.04  # rotation changes a logit by 1e-4 of the largest one
    apply(served, distance=distance("string", shift=15, window=4))
    with refused("frequencies.head_dim=12: must be 4", error=ConfigError):
        apply(served, frequencies=frequencies("rope", head_dim=12))
    with refused(f"model={type(other).__name__}: ", error=ConfigError):
        apply(other, distance=distance("string", shift=15, window=4))


def test_what_transformers_cannot_open_is_one_line(tmp_path):
    tiny("gpt_neox").save_pretrained(tmp_path)
    assert model_settings(tmp_path)["max_position_embeddings"] == 64
    path = tmp_path / "config.json"
    right = path.read_text()
    path.write_text(right.replace("gpt_neox", "gpt_new"))
    with refused(f"{tmp_path}: transformers {{}}", error=ConfigError):
        model_settings(tmp_path)
    path.write_text(right.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with refused(f"{tmp_path}: weights {{}}config.json {{}}", error=CheckpointError):
        load_foreign(tmp_path, "cpu")
    for family, name in (("llama", "max_position_embeddings"), ("gpt2", "n_positions")):  # of a wrong type
        tiny(family).save_pretrained(tmp_path / family)
        edit(tmp_path / family, **{name: 64.0})
        with refused(f"{tmp_path / family}: transformers cannot open it (Strict", error=ConfigError):
            open_model(tmp_path / family)


OWN = """
open({ran!r}, "w")
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
class OwnConfig(GPTNeoXConfig):
    model_type = "own"
class OwnModel(GPTNeoXForCausalLM):
    config_class = OwnConfig
"""


def test_code_of_a_folder_is_not_executed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    tiny("gpt_neox").save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text(OWN.format(ran=str(tmp_path / "ran")))
    edit(tmp_path, model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    for read in (model_settings, partial(load_foreign, device="cpu")):
        with refused(f"{tmp_path}: transformers cannot open it (", error=ConfigError):
            read(tmp_path)
    assert (asked, (tmp_path / "ran").exists()) == ([], False)


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("length", [24, 32, 33], ids=["across", "at_the_border", "beyond"])
def test_longrope_across_its_border_is_recomputed(family, length, tmp_path):
    """The lab's decoder runs Llama, transformers Phi-3, whose own generation recomputes as well."""
    factors = {"short_factor": [1.0, 1.05, 1.3, 2.0], "long_factor": [1.0, 2.0, 7.0, 16.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0, **factors}
    own = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    own |= {"max_position_embeddings": 128, "original_max_position_embeddings": 32, "pad_token_id": 0}
    model = tiny(family, vocab_size=61, rope_parameters=rope | {"original_max_position_embeddings": 32}, **own)
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim > 1 else 1
    model.save_pretrained(tmp_path / "model")
    ours = open_model(tmp_path / "model").decoder
    prompts = torch.randint(1, 61, (5, length), generator=torch.Generator().manual_seed(length))
    texts = prompts
    with torch.no_grad():
        for _ in range(14):
            texts = torch.cat([texts, model(texts, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(greedy(ours, prompts, 14), texts[:, length:])
    assert torch.equal(greedy(ours, prompts[2:3], 14), texts[2:3, length:])
    stop = int(texts[0, length + 3])  # a row that ends is left out when the others are read again
    answers = greedy(ours, prompts, 14, stop)
    for row, text in zip(answers, texts[:, length:], strict=True):
        n = [*text.tolist(), stop].index(stop)
        assert row[:n].tolist() == text[:n].tolist()
