"""Causal models of transformers as they are: their own numbers, and attention by definition under other positions."""

import sys
from functools import partial

import pytest
import torch

from lab.core.errors import CheckpointError, ConfigError
from lab.loading import open_model
from lab.model.attention.inspection import token_scores
from lab.model.generate import greedy
from lab.model.huggingface import apply, load_pretrained
from lab.model.huggingface.config import model_settings
from lab.model.huggingface.foreign import Foreign, load_foreign
from lab.positions import distance, frequencies
from tests.model.folders import edit
from tests.refusals import refused

transformers = pytest.importorskip("transformers")
TOL = 1e-5  # on log-probabilities; rotary settings of models are rounded to float32
SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {"hidden_size": 64, "num_key_value_heads": 4, "head_dim": 16}
ROTARY = {  # settings of models that rotate, some a part of a head, some in pairs of neighbours
    "gpt_neox": {"rotary_pct": 0.5},
    "phi": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1 / 3}},
    "olmo": {"num_key_value_heads": 2, "clip_qkv": 2.0},
    "olmo2": {},
    "gemma": {"head_dim": 16, "num_key_value_heads": 1},
    "granite": {"attention_multiplier": 0.1},
    "cohere": {},
    "glm": WIDE,
    "ernie4_5": {"head_dim": 12, "num_key_value_heads": 2, "num_hidden_layers": 2},
    "smollm3": {"num_key_value_heads": 2, "num_hidden_layers": 4},  # the last layer rotates nothing
}
NEIGHBOURS = ("cohere", "glm", "ernie4_5")
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
    # In float32 the sums of processors differ by more than TOL.
    return tiny(request.param, **ROTARY[request.param]).double(), request.param in NEIGHBOURS


def log_probs(model, text):
    with torch.no_grad():
        return model(text, use_cache=False).logits.double().log_softmax(-1)


def by_definition(model, text, method, turns, neighbours, monkeypatch):
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


def turns_of(model, settings):
    rope = model.config.rope_parameters
    n_rotated = (getattr(model.config, "head_dim", None) or 12) * rope.get("partial_rotary_factor", 1)
    theta = {} if settings["method"] == "entropy_abf" else {"theta": rope["rope_theta"]}
    return frequencies(head_dim=int(n_rotated + 0.1), **theta, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_other_positions_are_those_of_the_definition_in_one_pass_and_from_the_cache(name, rotary, text, monkeypatch):
    model, neighbours = rotary
    method, settings = METHODS[name]
    turns = turns_of(model, settings)
    expected = by_definition(model, text, method, turns, neighbours, monkeypatch)
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
    model = tiny(family, **{**ROTARY, **OTHERS}[family])
    if family != "gpt_oss":  # whose experts are multiplied in float32 at most
        model.double()
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
    """Both run in transformers, where Phi-3's own generation recomputes as well."""
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0, 1.0, 1.05, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.3, 2.0, 4.0, 7.0, 16.0]}
    own = {"num_key_value_heads": 2, "max_position_embeddings": 128, "original_max_position_embeddings": 32}
    model = tiny(family, rope_parameters=rope, **own)
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim > 1 else 1
    model.save_pretrained(tmp_path / "model")
    ours = open_model(tmp_path / "model").decoder
    prompts = torch.randint(1, 97, (5, length), generator=torch.Generator().manual_seed(length))
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


# The same weights in the lab's decoder

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
DISTANCES = [method for method, settings in METHODS.values() if settings["method"] == "rope"]
DISTANCES += [distance("string", shift=200, window=4), distance("rerope", window=9)]


def build(family):
    name, settings = FAMILIES[family]
    sizes = {"num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "eos_token_id": None}
    return tiny(name, **sizes, **settings)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_generation_equal_our_decoder_with_padding_on_the_left_and_a_cache_of_fixed_size(
    family, text, tmp_path
):
    model = build(family)
    model.save_pretrained(tmp_path)
    padded = torch.cat([torch.zeros(2, 6, dtype=torch.int64), text], dim=1)
    seen = torch.ones_like(padded)
    seen[0, :6] = 0
    padded[1, :6] = 5
    for method in DISTANCES if family == "llama" else DISTANCES[1::2]:  # of one key map and of two
        ours = load_pretrained(tmp_path, distance=method)
        expected = ours(text)
        assert apply(model, distance=method) is model
        torch.testing.assert_close(model(text).logits, expected, rtol=0, atol=TOL)
        cache, outs, begin = transformers.StaticCache(config=model.config, max_cache_len=60), [], 0
        for part in text.split([20, 1, 1, 23], dim=1):
            ids = torch.arange(begin, begin + part.shape[1])[None]
            begin += part.shape[1]
            outs.append(model(part, past_key_values=cache, use_cache=True, position_ids=ids).logits)
        torch.testing.assert_close(torch.cat(outs, dim=1), expected, rtol=0, atol=TOL)
        answer = model.generate(text, max_new_tokens=12, do_sample=False)[:, 45:]
        assert torch.equal(answer, greedy(ours, text, 12))
        answer = model.generate(padded, attention_mask=seen, max_new_tokens=6, do_sample=False)[:, 51:]
        assert torch.equal(answer[:1], greedy(ours, text[:1], 6))
        assert torch.equal(answer[1:], greedy(ours, padded[1:], 6))


def test_the_name_alone_is_refused():
    model, other = build("llama"), build("llama")
    apply(model, distance=DISTANCES[0])
    other.set_attn_implementation("probe_lab")
    with pytest.raises(ConfigError, match="^attn_implementation=probe_lab: .*; call lab"):
        other(torch.tensor([[1, 2]]))
