"""Whether a model is causal and divides documents, as lab.watch finds by forwards of its own, which change nothing."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import lab
from lab.core.errors import ConfigError
from tests.ranks import meet

transformers = pytest.importorskip("transformers")
T, WINDOW, VOCABULARY = 12, 16, 7
IDS = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 1, 2]])
DOCUMENTS = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 7, 2]))
POSITIONS = torch.tensor([[*range(3), *range(7), *range(2)]])
BOUNDARIES = torch.tensor([0, 3, 10, 12])
DIVIDED = [sum(max(n - i, 0) for n in (3, 7, 2)) for i in range(WINDOW)]
ROW = [max(T - i, 0) for i in range(WINDOW)]


class GPT(nn.Module):
    """A layer of attention by a mask, with batch norm, a cache, noise, and a count of its forwards."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.qkv, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 24), nn.Linear(8, VOCABULARY)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("keys", torch.zeros(1, T, 8))
        self.cache, self.calls = [torch.zeros(T)], 0

    def attend(self, ids, visible):
        q, k, v = self.qkv(self.embedding(torch.atleast_2d(ids))).chunk(3, -1)
        self.keys[:] = k[:1].detach()
        self.cache[0] += 1
        self.calls += 1
        noise = 1 + 1e-3 * torch.randn(())
        out = scaled_dot_product_attention(q, k, v, attn_mask=visible.tril()) * noise
        return self.head(self.norm(out.flatten(0, 1)).view(out.shape))


class Torchtitan(GPT):
    def forward(self, tokens, attention_masks=None, positions=None):
        index = torch.arange(T)
        return self.attend(tokens, attention_masks.mask_mod(0, 0, index[:, None], index))


class Lingua(GPT):
    def forward(self, token_values, target=None, tok_idx=None, mask=None, attn_impl="sdpa"):
        restarts = (tok_idx.diff(prepend=tok_idx[..., :1]) < 0).cumsum(-1).flatten()
        logits = self.attend(token_values, restarts[:, None] == restarts)
        return logits if target is None else cross_entropy(logits.flatten(0, 1), target.flatten())


class Modded(GPT):
    def forward(self, input_seq, target_seq, seqlens):
        of = torch.bucketize(torch.arange(T), torch.as_tensor(seqlens), right=True)
        return cross_entropy(self.attend(input_seq, of[:, None] == of).flatten(0, 1), target_seq)


class Ignoring(GPT):
    def forward(self, input_ids, position_ids=None, cu_seqlens=None):
        return self.attend(input_ids, torch.ones(T, T).bool())


class Bidirectional(GPT):
    def forward(self, input_ids):
        return (
            self.attend(input_ids, torch.ones(T, T).bool()) + self.embedding(input_ids).mean(1, keepdim=True)[..., :7]
        )


def block_mask(mask_mod):
    return create_block_mask(mask_mod, 1, None, T, T, device="cpu")


def causal_blocks(b, h, q, k):
    return (q >= k) & (DOCUMENTS[q] == DOCUMENTS[k])


NAMES = {"positions": "positions", "mask": "attention_masks"}
LINGUA = {"positions": "tok_idx", "targets": "target", "mask": "mask"}
TARGET = {"targets": "target_seq"}
MODDED = {"targets": "target_seq", "boundaries": "seqlens"}
MASK = block_mask(causal_blocks)
WINDOWED = block_mask(lambda b, h, q, k: causal_blocks(b, h, q, k) & (q - k < 3))
TARGETS = IDS.roll(-1, 1)
STATED = {  # a model, its input, the options, what it receives, and f; None for what is rejected
    "torchtitan": (Torchtitan, "tokens", NAMES, (IDS, MASK, POSITIONS), DIVIDED),
    "a mask with a window": (Torchtitan, "tokens", NAMES, (IDS, WINDOWED, POSITIONS), None),
    "an unnamed mask": (Torchtitan, "tokens", {}, (IDS, MASK), None),
    "lingua": (Lingua, "token_values", LINGUA, (IDS, TARGETS, POSITIONS, "causal"), DIVIDED),
    "unnamed positions": (Lingua, "token_values", {"targets": "target"}, (IDS, TARGETS, POSITIONS), None),
    "modded-nanogpt": (Modded, "input_seq", MODDED, (IDS[0], TARGETS[0], BOUNDARIES), DIVIDED),
    "unnamed targets": (Modded, "input_seq", {"boundaries": "seqlens"}, (IDS[0], TARGETS[0], BOUNDARIES), None),
    "unnamed flat positions": (Lingua, "token_values", {"targets": "target"}, (IDS, TARGETS, POSITIONS[0]), None),
    "unnamed boundaries": (Modded, "input_seq", TARGET, (IDS[0], TARGETS[0], BOUNDARIES), None),
    "unnamed numbers": (Modded, "input_seq", TARGET, (IDS[0], TARGETS[0], BOUNDARIES.tolist()), None),
    "boundaries in a list": (Modded, "input_seq", MODDED, (IDS[0], TARGETS[0], BOUNDARIES.tolist()), DIVIDED),
    "no documents": (Ignoring, "input_ids", {}, (IDS, torch.arange(T)[None]), ROW),
    "ignored positions": (Ignoring, "input_ids", {}, (IDS, POSITIONS), None),
    "ignored boundaries": (Ignoring, "input_ids", {}, (IDS, None, BOUNDARIES), None),
    "not causal": (Bidirectional, "input_ids", {}, (IDS,), None),
}  # fmt: skip


@pytest.mark.parametrize("case", STATED)
def test_layouts_under_other_names(case, caplog):
    make, input, options, received, f = STATED[case]
    model = make()
    watch = lab.watch(model, window=WINDOW, input=input, **options)
    for _ in range(2):
        model(*received)
    assert watch.frequency().tolist() == [2 * n for n in f or [0] * WINDOW]
    assert (watch.incomplete is None) == (f is not None)
    assert len(caplog.records) == (f is None)
    if "targets" in options and f:
        expected = lab.watch(copy.deepcopy(model), window=WINDOW, input=input, **options)
        expected.model(*received[:1], torch.full_like(received[1], -100), *received[2:])
        assert watch.demand().any()
        assert not expected.demand().any()


@pytest.mark.parametrize("case", ["torchtitan", "modded-nanogpt"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_forwards_change_nothing(case, dtype):
    make, input, options, received, _ = STATED[case]
    models, states = (make(), make()), []
    for model in models:
        torch.manual_seed(1)
        if model is models[1]:
            watch = lab.watch(model, window=WINDOW, input=input, **options)
        model.norm.eval()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            for _ in range(2):
                model(*received).sum().backward()
        modes = [module.training for module in model.modules()]
        gradients = [parameter.grad for parameter in model.parameters()]
        states.append([*gradients, *model.buffers(), *model.cache, torch.get_rng_state(), modes, model.calls])
    for bare, watched in zip(*states, strict=True):
        assert torch.equal(bare, watched) if isinstance(bare, torch.Tensor) else bare == watched
    assert watch.frequency().any()


def test_types_without_causal_attention_are_rejected():
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 8}
    more = {"num_attention_heads": 2, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    for name in ("t5", "mamba", "rwkv", "vit"):
        known = vars(transformers.AutoConfig.for_model(name))
        config = transformers.AutoConfig.for_model(
            name, **{key: v for key, v in (sizes | more).items() if key in known}
        )
        make = {"t5": transformers.AutoModelForSeq2SeqLM, "vit": transformers.AutoModel}.get(name)
        model = (make or transformers.AutoModelForCausalLM).from_config(config)
        if name in ("mamba", "rwkv"):
            with pytest.raises(ConfigError, match="model=.* has no attention"):
                lab.watch(model, window=WINDOW)
            continue
        watch = lab.watch(model.train(), window=WINDOW)
        if name == "vit":
            model(pixel_values=torch.zeros(1, 3, config.image_size, config.image_size))
        else:
            model.config.decoder_start_token_id = 0
            model(IDS, labels=IDS)
        assert ("token ids" if name == "vit" else "later tokens change earlier outputs") in watch.incomplete


@pytest.mark.parametrize("zero", ["head", "attention"])
def test_attention_without_an_effect_yet_is_not_believed(zero):
    """nanochat and modded-nanogpt begin with projections of zeros, the latter in parts of a parameter."""
    model = Ignoring()
    weight = model.head.weight if zero == "head" else model.qkv.weight[16:]
    nn.init.zeros_(weight)
    nn.init.zeros_(model.qkv.bias)
    watch = lab.watch(model, window=WINDOW)
    model(IDS, POSITIONS)
    assert not watch.frequency().any()
    assert "tokens see other documents" in watch.incomplete
    assert not weight.any()


@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_small_effect_of_later_tokens_is_no_rounding(is_decoder):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=50, **sizes, is_decoder=is_decoder, use_cache=False)
    model = transformers.BertLMHeadModel(config).train()
    watch = lab.watch(model, window=WINDOW)
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS)
    assert watch.frequency().tolist() == (ROW if is_decoder else [0] * WINDOW)
    assert is_decoder or "later tokens change earlier outputs" in watch.incomplete


def test_forwards_with_gradients_in_eval_mode_are_reported(caplog):
    model = Ignoring().eval()
    watch = lab.watch(model, window=WINDOW)
    for _ in range(101):
        model(IDS)
    assert "train()" in watch.incomplete
    assert len(caplog.records) == 1


def shard(is_watched_first):
    """Train two forwards of a sharded model, watched and not; return its losses, f, and what is incomplete."""
    meet()
    losses = []
    for is_watched in (False, True):
        model = Ignoring()
        model.norm.eval()
        watch = lab.watch(model, window=WINDOW) if is_watched and is_watched_first else None
        for part in (model.qkv, model):
            fully_shard(part, reshard_after_forward=True)
        if is_watched and not is_watched_first:
            watch = lab.watch(model, window=WINDOW)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for arguments in ({}, {}, {"position_ids": torch.arange(T)[None]}):
            torch.manual_seed(1)
            loss = model(IDS, **arguments).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    return losses[:3] == losses[3:], watch.frequency().tolist(), watch.incomplete


@pytest.mark.parametrize("is_watched_first", [True, False])
def test_a_sharded_model_is_tested_at_its_first_forward_alone(ranks, is_watched_first):
    for is_equal, f, incomplete in ranks(2).run(shard, is_watched_first):
        assert is_equal
        assert f == [2 * n for n in ROW]
        assert "sharded" in incomplete
