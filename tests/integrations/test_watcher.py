"""What lab.watch counts, against the attention weights that transformers computes and brute force, and over ranks."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lab
from lab.core.errors import ConfigError, DataError, LabError
from lab.data.preparation import shard_folder
from lab.integrations.counter import Counter
from lab.model.config import LayersConfig
from lab.model.decoder import Decoder, DecoderConfig
from tests import opened
from tests.evidence import brute
from tests.ranks import meet
from tests.refusals import refused

transformers = pytest.importorskip("transformers")

WINDOW, VOCABULARY, T = 16, 5, 12
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
N = 3  # tokens of a block of evidence, the default


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, **SIZES, attn_implementation="eager", use_cache=False)
    return transformers.LlamaForCausalLM(config).train()


def tokens(seed=0, rows=2):
    return torch.randint(0, VOCABULARY, (rows, T), generator=torch.Generator().manual_seed(seed))


LEFT, RIGHT = torch.ones(2, T, dtype=torch.int64), torch.ones(2, T, dtype=torch.int64)
LEFT[0, :5] = 0
RIGHT[1, 7:] = 0
LEFT_IDS = (LEFT.cumsum(1) - 1).masked_fill(LEFT == 0, 1)
RESTARTS = torch.tensor([[*range(3), *range(7), *range(2)]])
GAPS = torch.tensor([[*range(4), *range(8, 16)]])
DOCUMENT = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 4, 3]))
BLOCKS = torch.tril(torch.ones(T, T)).bool() & (DOCUMENT[:, None] == DOCUMENT)
ADDED = torch.zeros(1, 1, T, T).masked_fill(~BLOCKS, torch.finfo(torch.float32).min)
LAYOUTS = {  # arguments, which rows, and the tokens that are padding
    "plain": ({}, 2),
    "left padding": ({"attention_mask": LEFT}, 2),
    "right padding": ({"attention_mask": RIGHT.bool()}, 2),
    "left padding with ids": ({"attention_mask": LEFT, "position_ids": LEFT_IDS}, 2),
    "restarts": ({"position_ids": RESTARTS}, 1),
    "restarts of trl": ({"position_ids": RESTARTS, "seq_idx": (RESTARTS == 0).cumsum(1) - 1}, 1),
    "restarts of two rows": ({"position_ids": torch.cat([RESTARTS, torch.arange(T)[None]])}, 2),
    "mask of blocks": ({"attention_mask": ADDED}, 1),
    "ids with gaps and a mask": ({"attention_mask": torch.ones(1, T), "position_ids": GAPS}, 1),
}


def f_of_attention(model, ids, arguments):
    """Count the pairs to which the layer of most pairs gives a weight, by the difference of ids, without padding."""
    with torch.no_grad():
        layers = model(ids, **arguments, output_attentions=True).attentions
    weights = max((layer[:, 0] for layer in layers if layer is not None), key=lambda layer: int((layer > 0).sum()))
    mask = arguments.get("attention_mask")
    is_query = torch.ones_like(ids).bool() if mask is None or mask.dim() == 4 else mask.bool()
    positions = arguments.get("position_ids", torch.arange(T)[None]).expand(len(ids), T)
    f = np.zeros(WINDOW, dtype=np.int64)
    for row, query, key in zip(*np.nonzero((weights * is_query[..., None]).numpy() > 0), strict=True):
        f[positions[row, query] - positions[row, key]] += 1
    return f


def g_by_definition(ids, targets, lengths):
    counts = brute.demand(ids, targets, lengths, lambda sequence, place: brute.repeat(sequence, place, N))
    return [counts.get(d, 0) for d in range(WINDOW)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_f_is_that_of_the_attention_weights(model, layout):
    arguments, rows = LAYOUTS[layout]
    ids = tokens(rows=rows)
    watch = lab.watch(model, window=WINDOW)
    expected = f_of_attention(model, ids, arguments)
    assert not watch.frequency().any()  # that forward had no gradients
    model(ids, **arguments)
    assert watch.frequency().tolist() == expected.tolist()
    assert watch.incomplete is None


LOCAL = {  # windows and chunks of 4 tokens, in models of 3 layers
    **{name: {} for name in ("mistral", "starcoder2", "phi3", "cohere2", "olmo3", "gemma2", "gemma3_text")},
    "llama4_text": {"num_local_experts": 2},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "recurrent_gemma": {"attention_window_size": 4, "lru_width": 16},
    "gpt_neo": {"num_layers": 3, "window_size": 4, "attention_types": [[["local"], 3]]},
    "modernbert-decoder": {
        "local_attention": 8,
        "global_attn_every_n_layers": 4,
        "layer_types": ["sliding_attention"] * 3,
    },
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 1},
}


@pytest.mark.parametrize("name", LOCAL)
def test_f_and_g_of_windows_and_chunks_are_those_of_the_attention_weights(name):
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY}
    sizes |= {"sliding_window": 4, "attention_chunk_size": 4}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    config = transformers.AutoConfig.for_model(name, **sizes, **special, **LOCAL[name], use_cache=False)
    local = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for layout in ("plain", "left padding", "restarts", "mask of blocks"):
        arguments, rows = LAYOUTS[layout]
        if name in ("gpt_neo", "gpt_oss") and layout == "restarts":
            continue  # documents see each other
        watch = lab.watch(local, window=WINDOW)
        ids = tokens(3, rows)
        expected = f_of_attention(local.eval(), ids, arguments)
        local.train()(ids, **arguments)
        assert watch.frequency().tolist() == expected.tolist(), layout
        assert watch.incomplete is None
        if layout == "plain":
            targets = nn.functional.pad(ids[:, 1:], (0, 1), value=brute.IGNORE).flatten().tolist()
            lengths = [4] * (2 * T // 4) if name.startswith("llama4") else [T, T]
            demand = g_by_definition(ids.flatten().tolist(), targets, lengths)
            if not expected[4]:
                demand[5:] = [0] * (WINDOW - 5)  # the token 4 before a target is 3 before the one that predicts it
            assert watch.demand().tolist() == demand


def test_windows_of_models_without_a_config_and_of_the_labs_own():
    ids = tokens(rows=1)
    own = Decoder(DecoderConfig(vocab_size=VOCABULARY, **opened.SIZES)).train()
    layers = LayersConfig(pattern=("window", "nope"), window=4)
    mixed = Decoder(DecoderConfig(vocab_size=VOCABULARY, **(opened.SIZES | {"n_layers": 2}), layers=layers)).train()
    for model, option, f in (
        (own, {"sliding_window": 4}, [12, 11, 10, 9, 0]),
        (own, {"attention_chunk_size": 5}, [12, 9, 6, 4, 2]),
        (mixed, {}, [12, 11, 10, 9, 0]),
    ):
        watch = lab.watch(model, window=WINDOW, input="tokens", **option)
        model(ids)
        assert watch.frequency()[:5].tolist() == f
        watch.close()


class Wrapper(nn.Module):
    """A model that has no config, around one that has."""

    def __init__(self, lm):
        super().__init__()
        self.lm = lm

    def forward(self, input_ids):
        return self.lm(input_ids).logits


def test_a_wrapper_has_the_window_of_the_model_within():
    config = transformers.MistralConfig(vocab_size=VOCABULARY, **SIZES, num_key_value_heads=2, sliding_window=4)
    config._attn_implementation = "eager"
    local = transformers.MistralForCausalLM(config)
    expected = f_of_attention(local.eval(), tokens(), {})
    watch = lab.watch(Wrapper(local).train(), window=WINDOW)
    watch.model(tokens())
    assert watch.frequency().tolist() == expected.tolist()
    assert not expected[4:].any()


def test_an_own_window_of_a_hybrid_leaves_the_rest_of_its_coverage():
    sizes = SIZES | {"num_hidden_layers": 3, "attention_window_size": 9, "lru_width": 16, "use_cache": False}
    config = transformers.RecurrentGemmaConfig(vocab_size=VOCABULARY, head_dim=8, **sizes)
    hybrid = transformers.RecurrentGemmaForCausalLM(config).train()
    watch = lab.watch(hybrid, window=WINDOW, sliding_window=4)
    hybrid(tokens(rows=1), position_ids=RESTARTS)
    assert watch.frequency()[:5].tolist() == [*f_by_pairs([3, 7, 2])[:4], 0]
    assert watch.incomplete is None


PACKED = {"cu_seq_lens_q": torch.tensor([0, 3, 10, 12]), "cu_seq_lens_k": torch.tensor([0, 3, 10, 12])}


def test_packed_rows_by_their_boundaries(model):
    watch = lab.watch(model, window=WINDOW)
    model(tokens(rows=1), position_ids=RESTARTS, **PACKED, max_length_q=7, max_length_k=7)
    assert watch.frequency().tolist() == [sum(max(n - i, 0) for n in (3, 7, 2)) for i in range(WINDOW)]


@pytest.mark.parametrize("supervision", ["none", "labels", "shift_labels"])
def test_g_is_that_of_brute_force(model, supervision):
    ids = tokens(3)
    labels = ids.clone()
    targets = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
    arguments = {}
    if supervision != "none":
        targets[:, 6:8] = labels[:, 7:9] = -100
        arguments = {supervision: labels if supervision == "labels" else targets}
    watch = lab.watch(model, window=WINDOW)
    model(ids, **arguments)
    expected = g_by_definition(ids.flatten().tolist(), targets.flatten().tolist(), [T, T])
    assert watch.demand().tolist() == expected
    assert sum(expected) > 2


class Nanochat(nn.Module):
    """The signature of karpathy/nanochat's GPT: a loss for targets, of which -1 has none, else logits."""

    def __init__(self):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, idx, targets=None, kv_cache=None, loss_reduction="mean"):
        logits = self.lm_head(self.wte(idx)).float()
        if targets is None:
            return logits
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=loss_reduction)


def litgpt():
    pytest.importorskip("litgpt", reason="pip install --no-deps 'litgpt==0.5.13'")
    from litgpt import GPT, Config

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": VOCABULARY, "padded_vocab_size": VOCABULARY}
    return GPT(Config(block_size=WINDOW, **sizes))


@pytest.mark.parametrize("make", [Nanochat, litgpt])
def test_f_and_g_of_other_signatures(make):
    model, demand = make().train(), np.zeros(WINDOW, int)
    watch = lab.watch(model, window=WINDOW, input="idx")
    for seed in range(9):
        ids, given = tokens(seed, rows=3), tokens(seed, rows=3).roll(-1, 1)
        given[:, 7:9] = -1
        if make is Nanochat:
            loss, targets = model(ids, given), torch.where(given < 0, brute.IGNORE, given)
        else:  # the loop computes the loss, so that every next token of a row counts
            loss, targets = model(ids).sum(), nn.functional.pad(ids[:, 1:], (0, 1), value=brute.IGNORE)
        loss.backward()
        demand += g_by_definition(ids.flatten().tolist(), targets.flatten().tolist(), [T] * 3)
    assert watch.incomplete is None
    assert watch.frequency().tolist() == [27 * max(T - i, 0) for i in range(WINDOW)]
    assert watch.demand().tolist() == demand.tolist()
    assert demand.sum() > 10


def test_g_within_documents_and_the_share_counted(model, monkeypatch):
    ids = tokens(3, rows=1)
    watch = lab.watch(model, window=WINDOW)
    for is_behind in (False, True, False):
        monkeypatch.setattr(Counter, "is_behind", is_behind)
        model(ids, position_ids=RESTARTS)
    targets = [*ids[0, 1:].tolist(), -100]
    targets[2] = targets[9] = -100
    assert watch.demand().tolist() == [2 * n for n in g_by_definition(ids[0].tolist(), targets, [3, 7, 2])]
    assert watch.demand().any()
    assert watch.demand_share == pytest.approx(2 / 3)


REFUSED = {
    "a mask that is not causal": {"attention_mask": torch.ones(1, 1, T, T).bool()},
    "a window of a mask": {"attention_mask": torch.tril(torch.ones(T, T)).triu(-3)[None, None].bool()},
    "gaps without a mask": {"position_ids": torch.arange(T)[None] * 2},
    "restarts under a mask": {"attention_mask": torch.ones(1, T), "position_ids": RESTARTS},
    "beyond the window": {"attention_mask": torch.ones(1, T), "position_ids": torch.arange(T)[None] * 3},
    "restarts where keys are kept": {"position_ids": RESTARTS, "use_cache": True},
    "boundaries that the attention ignores": PACKED,
    "a mask of a cache": {"attention_mask": torch.ones(1, T + 3)},
}


@pytest.mark.parametrize("layout", REFUSED)
def test_what_cannot_be_known_is_not_counted_and_said_once(model, caplog, layout):
    watch = lab.watch(model, window=WINDOW)
    for _ in range(2):
        with suppress(RuntimeError, ValueError):  # of the model itself, which takes no such mask
            model(tokens(rows=1), **REFUSED[layout])
    assert not watch.frequency().any()
    assert len(caplog.records) == 1
    assert watch.incomplete
    assert "\n" not in caplog.text.strip()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_that_checkpointing_repeats_counts_once(model, use_reentrant):
    watch = lab.watch(model, window=WINDOW)
    embedding = torch.zeros(1, requires_grad=True)
    ids = tokens()
    out = checkpoint(lambda x: model(ids).logits.sum() + x, embedding, use_reentrant=use_reentrant)
    out.sum().backward()
    assert watch.frequency()[0] == ids.numel()


def test_checkpointing_of_transformers_keeps_no_cache_and_divides(model):
    model.config.use_cache = True
    model.gradient_checkpointing_enable()
    watch = lab.watch(model, window=WINDOW)
    model(tokens(rows=1), position_ids=RESTARTS)
    assert watch.frequency().tolist() == f_by_pairs([3, 7, 2])
    assert watch.incomplete is None
    model.gradient_checkpointing_disable()
    model(tokens(rows=1), position_ids=RESTARTS)
    assert watch.frequency()[0] == T
    assert "tokens see other documents" in watch.incomplete


def f_by_pairs(lengths):
    """Count the pairs of the tokens of each document, one by one."""
    f = [0] * WINDOW
    for length in lengths:
        for query in range(length):
            for key in range(max(0, query - WINDOW + 1), query + 1):
                f[query - key] += 1
    return f


CROPPED, JOINED = [[8], [8], [8], [3, 5], [2, 1], [7]], [[8]] * 7  # rows of 8 tokens of these documents
LENGTHS = [3, 9, 12, 2, 1, 17, 5, 7]


@pytest.mark.parametrize("rows", [CROPPED, JOINED], ids=["cropped", "joined"])
def test_what_a_packer_drops(model, rows):
    watch = lab.watch(model, window=WINDOW)
    for _ in range(2):
        for row in rows:
            positions = torch.cat([torch.arange(length) for length in row])[None]
            model(torch.zeros_like(positions), position_ids=positions)
    table = watch.dropped((length for length in LENGTHS), epochs=2)
    whole, own = f_by_pairs(LENGTHS), f_by_pairs([length for row in rows for length in row])
    assert table.f_documents.tolist() == [2 * n for n in whole]
    assert table.f.tolist() == [2 * n for n in own]
    assert table.f_lost.tolist() == [2 * (a - b) for a, b in zip(whole, own, strict=True)]
    assert table.attrs == ({"kept": 84, "cut": 28} if rows is CROPPED else {"kept": 112, "cut": 0})
    assert (table.f_lost.min() < 0) == (rows is JOINED), "rows join documents"


LINES = {"lengths": ([[5, 6], [7]], [10.7], "10", [-3, 5], [2**40], 5), "epochs": ("2", None, np.nan, np.inf, -1)}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in LINES for value in LINES[field]], ids=str)
def test_what_a_packer_cannot_drop_is_a_line(model, field, value):
    with refused(f"{field}={value}: must be {{}} >= 0{{}}; {{}}", error=ConfigError):
        lab.watch(model, window=WINDOW).dropped(**{"lengths": LENGTHS, field: value})


def test_counts_of_another_window_are_refused(model):
    with pytest.raises(DataError, match="window=9"):
        lab.watch(model, window=9).load_state_dict(lab.watch(model, window=WINDOW).state_dict())


def watched(sharding, tokenizer_path):
    """Train two forwards on this rank, probe, save, and restore; return what was counted and measured."""
    meet()
    rank = distributed.get_rank()
    tokenizer = Tokenizer.from_file(tokenizer_path)
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(vocab_size=tokenizer.get_vocab_size(), **opened.SIZES)).train()
    model = nn.parallel.DistributedDataParallel(model) if sharding == "ddp" else fully_shard(model)
    watch = lab.watch(model, tokenizer, window=96, input="tokens")
    for step in range(2):
        model(tokens(10 * rank + step)).sum().backward()
    own, total, demand = watch.frequency(), watch.frequency(reduce=True), watch.demand(reduce=True)
    table = watch.probe(tests=3, distances=[40, 60])
    watch.tokenizer = None if rank else tokenizer  # the other rank must not wait for this one
    with pytest.raises(LabError) as failed:
        watch.probe(tests=3)
    again = lab.watch(model, window=96, input="tokens")
    again.load_state_dict(watch.state_dict())
    restored = again.frequency(reduce=True)
    counts = [array.tolist() for array in (own, total, demand, restored)]
    return *counts, table.to_dict("list"), str(failed.value)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_ranks_are_added_up_and_probe_together(prepared, ranks, sharding):
    first, second = ranks(2).run(watched, sharding, str(shard_folder(prepared) / "tokenizer.json"))
    own, total, demand, restored, table, failed = first
    assert [a + b for a, b in zip(own, second[0], strict=True)] == total == second[1] == restored
    assert total[:12] == [8 * (12 - i) for i in range(12)]
    ids = torch.cat([tokens(10 * rank + step) for rank in (0, 1) for step in (0, 1)])
    targets = nn.functional.pad(ids[:, 1:], (0, 1), value=brute.IGNORE)
    expected = g_by_definition(ids.flatten().tolist(), targets.flatten().tolist(), [T] * len(ids))
    assert demand == second[2] == [*expected, *[0] * (96 - WINDOW)]
    assert table == second[4]
    assert (table["n"], table["f"]) == ([3, 3], [total[40], total[60]])
    assert failed == second[5]
    assert failed.startswith("tokenizer=NoneType: ")
