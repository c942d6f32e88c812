"""Compiled blocks: one graph for all blocks and packs, the numbers of uncompiled ones, the same names of weights."""

import random

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lab import choices
from lab.choices import choose_backend, choose_compile
from lab.data.module import to_batch
from lab.data.packing import IGNORE, Pack
from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.model.optim import OptimConfig
from lab.model.training import Training
from lab.positions import distance, frequencies
from tests.fits import load
from tests.model import stand_ins
from tests.model.stand_ins import definition
from tests.ranks import meet
from tests.refusals import refused

CFG = DecoderConfig(
    d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=24, vocab_size=31, tie_embeddings=False, head_chunk=20
)
TOKENS, WINDOW, N_PACKS = 32, 12, 10
FLOAT32_TOL = 1e-5  # of the largest entry: three layers of float32 sums in another order
ROPE, PLAIN = frequencies("rope", head_dim=8), distance("plain")
SHARPENED = frequencies("entropy_abf", head_dim=8, train_len=8, exempt_layers=1)
CASES = [  # frequencies, what packs have, whether activations are recomputed
    pytest.param(ROPE, ("weights", "gaps"), False, id="weights_and_gaps"),
    pytest.param(ROPE, ("anchors",), False, id="anchors", marks=pytest.mark.slow),
    pytest.param(SHARPENED, (), False, id="sharpened_by_layer", marks=pytest.mark.slow),
    pytest.param(ROPE, (), True, id="recomputed", marks=pytest.mark.slow),
]


@pytest.fixture
def kernels(monkeypatch):
    """Stand in for torch's flash attention on the CPU, in float32 as well."""
    monkeypatch.setattr(definition, "HALF", (*definition.HALF, torch.float32))
    with stand_ins.on_cpu():
        yield


def draw(seed, kinds):
    """Draw a pack: other lengths, padding and number of segments for every seed."""
    rng = random.Random(seed)
    room, lengths = TOKENS - rng.choice([0, 1, 5, 20]), []
    while sum(lengths) < room:
        lengths.append(min(rng.randint(1, WINDOW), room - sum(lengths)))
    numbers = np.random.default_rng(seed)
    tokens = numbers.integers(0, 31, TOKENS)
    targets = np.where(np.arange(TOKENS) < room, numbers.integers(0, 31, TOKENS), IGNORE)
    ids = np.cumsum(numbers.integers(1, 4, TOKENS)) if "gaps" in kinds else None
    anchors = tuple(-1 if n % 2 == 0 else sum(lengths[: n - 1]) for n in range(len(lengths)))
    pack = Pack(tokens, targets, lengths, 0, np.zeros(1), ids, anchors if "anchors" in kinds else None)
    return to_batch(pack, np.linspace(0.5, 2, TOKENS) if "weights" in kinds else None, WINDOW)


def training(given, compiler=None, kernel="varlen", method=PLAIN, mesh=None, ranks=1, **settings):
    sizes = {"total_steps": 4, "batch_tokens": ranks * TOKENS, "micro_batch_tokens": TOKENS}
    backend = "sdpa" if compiler is None else kernel
    methods = {"frequencies": given, "distance": method}
    module = Training(CFG, OptimConfig(), **methods, backend=backend, seed=1, compiler=compiler, **sizes, **settings)
    module._device_mesh = mesh
    module.configure_model()
    return module


def outcome(module, batch):
    loss = module.training_step(batch, 0)
    return [loss.detach(), *torch.autograd.grad(loss, list(module.decoder.parameters()))]


@pytest.mark.parametrize(("given", "kinds", "recompute"), CASES)
def test_one_graph_serves_all_blocks_and_packs(kernels, given, kinds, recompute):
    check_one_graph(given, kinds, recompute=recompute)


@pytest.mark.parametrize("kinds", [("weights", "gaps"), ("anchors",)], ids="-".join)
def test_one_graph_serves_all_blocks_and_packs_on_a_cpu(kinds):
    check_one_graph(SHARPENED, kinds, kernel="sdpa")


def check_one_graph(given, kinds, **settings):
    """Compare compiled with uncompiled losses and gradients over many packs, and count the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, eager = training(given, counter, **settings), training(given)
    packs = [draw(seed, kinds) for seed in range(N_PACKS)]
    assert len({len(batch["lengths"]) for batch in packs}) > 3
    for batch in packs:
        for got, wanted in zip(outcome(compiled, batch), outcome(eager, batch), strict=True):
            assert float((got - wanted).abs().max()) <= FLOAT32_TOL * float(wanted.abs().max())
    tokens = packs[0]["tokens"]
    for block in compiled.decoder.blocks:
        block.attention.backend = "sdpa"  # for rows without segments
    with torch.no_grad():
        torch.testing.assert_close(compiled.decoder(tokens), eager.decoder(tokens))
    assert compiled.decoder.load_state_dict(eager.decoder.state_dict()).missing_keys == []
    assert counter.frame_count == 1, "of all blocks, packs and uses"


def on_two_ranks(kind):
    """Train on the same packs on every rank; return the graphs, the weights' names, and norms and gradients."""
    meet()
    torch._dynamo.reset()
    definition.HALF = (*definition.HALF, torch.float32)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",)) if kind == "fsdp" else None
    counter = CompileCounterWithBackend("aot_eager")
    module = training(ROPE, counter, mesh=mesh, ranks=2)
    names = list(module.decoder.state_dict())
    if kind == "ddp":  # buckets so small that torch would split a block
        module.decoder = DistributedDataParallel(module.decoder, bucket_cap_mb=0.001)
    results = []
    with stand_ins.on_cpu():
        for seed in range(3):
            results.append(step(module, draw(seed, ())))
    return counter.frame_count, names, results


def step(module, batch):
    """Train on a pack; return the norm that is recorded, and the whole gradients after they were cut to it."""
    module.zero_grad()
    module.training_step(batch, 0).backward()
    module.configure_gradient_clipping(torch.optim.AdamW(module.parameters()))
    grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in module.parameters()]
    return [module.copied.values[-2].clone(), *(grad.clone() for grad in grads)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_strategies_keep_one_graph_and_the_names_of_weights(ranks, kind):
    eager = training(ROPE)
    expected = [step(eager, draw(seed, ())) for seed in range(3)]
    for graphs, names, results in ranks(2).run(on_two_ranks, kind):
        assert graphs == 1
        assert names == list(eager.decoder.state_dict())
        for got, wanted in zip(results, expected, strict=True):
            for x, y in zip(got, wanted, strict=True):
                assert float((x - y).abs().max()) <= FLOAT32_TOL * float(y.abs().max())


STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
NARROW = ("--model.n_heads=8", "--model.n_kv_heads=8")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
OBSTACLES = {
    "float32_on_a_gpu": ((), "sdpa", "attention by sdpa", GPU),
    "flash": ((), "flash", "attention by flash", GPU),
    "reference": ((), "reference", "attention by reference", CPU),
    "narrow_heads": (NARROW, "varlen", "attention by varlen with heads of 4", GPU),
    "bands": (STRING, "varlen", "the tiles of position.distance.method=string", GPU),
    "bands_on_a_cpu": (STRING, "sdpa", "the tiles of position.distance.method=string", CPU),
    "context": (("--train.context_parallel=2", "--train.devices=2"), "varlen", "train.context_parallel=2", GPU),
}


@pytest.mark.parametrize(("words", "kernel", "obstacle", "device"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_is_not_one_graph_is_left_uncompiled_or_refused(words, kernel, obstacle, device):
    compiled, reason = choose_compile(load(*words), kernel, device)
    assert not compiled
    assert reason.startswith(obstacle)
    with refused(f"train.compile=true: {obstacle}", error=ConfigError):
        choose_compile(load(*words, "--train.compile=true"), kernel, device)


def test_one_call_of_a_variable_length_kernel_is_compiled_unless_switched_off():
    assert choose_compile(load(), "varlen", GPU)[0]
    assert choose_compile(load("--train.compile=true"), "varlen", GPU)[0]
    assert choose_compile(load("--train.compile=false"), "varlen", GPU) == (False, "set in the config")
    with refused("train.compile=maybe: ", error=ConfigError):
        load("--train.compile=maybe")


def test_blocks_are_compiled_on_a_cpu_only_when_asked_and_with_a_compiler(monkeypatch):
    asked = load("--train.compile=true")
    monkeypatch.setattr(choices, "compiler_fault", lambda: None)
    assert not choose_compile(load(), "sdpa", CPU)[0]
    assert choose_compile(asked, "sdpa", CPU)[0]
    monkeypatch.setattr(choices, "compiler_fault", lambda: "torch cannot compile; install g++")
    with refused("train.compile=true: torch cannot compile; install g++", error=ConfigError):
        choose_compile(asked, "sdpa", CPU)


def test_the_kernel_that_can_be_compiled_is_chosen_before_flash_attn(stood_in):
    on_gpu, bf16 = torch.device("cuda"), "--train.precision=bf16"
    assert choose_backend(load(bf16), on_gpu)[0] == "varlen"
    assert choose_backend(load(bf16, "--train.compile=false"), on_gpu)[0] == "flash"
    assert choose_backend(load(bf16, *STRING), on_gpu)[0] == "flash"
