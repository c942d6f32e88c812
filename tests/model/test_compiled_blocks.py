"""Compiled blocks: the same graphs for all blocks and packs, the numbers and weights' names of uncompiled ones."""

import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lab.core.errors import ConfigError
from lab.core.launch import Launch
from lab.core.types import IGNORE
from lab.data.batch import to_batch
from lab.data.packing import Pack
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.config import DecoderConfig, LayersConfig
from lab.model.devices import choose_compile, compiles
from lab.positions import distance, frequencies
from lab.train.loop import compute_loss, train_pack
from lab.train.state import Stopping
from tests.fits import load
from tests.forked import python
from tests.model import stand_ins
from tests.modules import training_of
from tests.refusals import refused

CFG = DecoderConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=24, vocab_size=31, tie_embeddings=False)
TOKENS, WINDOW, N_PACKS = 32, 12, 10
FLOAT32_TOL = 4e-6  # of the largest entry: float32 sums in two orders, each within 2e-6 of float64 here
ROPE, PLAIN = frequencies("rope", head_dim=8), distance("plain")
SHARPENED = frequencies("entropy_abf", head_dim=8, train_len=8, exempt_layers=1)
BANDS = distance("dca", chunk=5, train_len=8, window=2)
CASES = [  # frequencies, distance, backend, what packs have, whether activations are recomputed
    pytest.param(ROPE, PLAIN, "varlen", ("weights", "gaps"), False, id="weights_and_gaps"),
    pytest.param(SHARPENED, PLAIN, "varlen", ("anchors",), True, id="sharpened_anchors_recomputed"),
    pytest.param(ROPE, PLAIN, "sdpa", ("anchors",), False, id="sdpa"),
    pytest.param(ROPE, BANDS, "sdpa", ("anchors",), True, id="dca_anchors_recomputed"),
    pytest.param(ROPE, BANDS, "reference", ("gaps",), False, id="reference", marks=pytest.mark.slow),
]


@pytest.fixture
def kernels(monkeypatch):
    """Stand in for torch's flash attention on the CPU, in float32 as well."""
    monkeypatch.setattr(stand_ins, "HALF", (*stand_ins.HALF, torch.float32))
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
    weights = (targets != IGNORE) & (tokens % 3 > 0) if "weights" in kinds else None
    return to_batch(replace(pack, weights=weights))


def training(given, compiler=None, kernel=None, method=PLAIN, mesh=None, ranks=1, cfg=CFG, **settings):
    sizes = {"steps": 4, "batch_tokens": ranks * TOKENS, "micro_batch_tokens": TOKENS}
    kernel = kernel or ("sdpa" if compiler is None else "varlen")
    methods = {"frequencies": given, "distance": method}
    return training_of(cfg, **methods, backend=kernel, compiler=compiler, mesh=mesh, **sizes, **settings)


def outcome(state, batch):
    loss = compute_loss(state, batch, stop=False)
    return [loss.detach(), *torch.autograd.grad(loss, list(state.decoder.parameters()))]


def assert_close(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert float((x - y).abs().max()) <= FLOAT32_TOL * float(y.abs().max())


@pytest.mark.parametrize(("given", "method", "kernel", "kinds", "recompute"), CASES)
def test_two_graphs_around_attention_serve_all_blocks_and_packs(kernels, given, method, kernel, kinds, recompute):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = training(given, counter, kernel, method, recompute=recompute)
    eager = training(given, None, "reference" if kernel == "reference" else "sdpa", method)
    packs = [draw(seed, kinds) for seed in range(N_PACKS)]
    assert len({len(batch.pack.lengths) for batch in packs}) > 3
    for batch in packs:
        assert_close(outcome(compiled, batch), outcome(eager, batch))
    for block in compiled.decoder.blocks:
        block.attention.backend = "sdpa"  # for rows without segments
    tokens = packs[0].inputs.tokens
    with torch.no_grad():
        torch.testing.assert_close(compiled.decoder(tokens), eager.decoder(tokens))
    assert compiled.decoder.load_state_dict(eager.decoder.state_dict()).missing_keys == []
    assert counter.frame_count == 2, "of all blocks, packs and uses"


@pytest.mark.parametrize("kinds", [(), ("gaps", "weights")])
def test_on_a_cpu_queries_and_keys_are_rotated_in_the_graph(kinds, monkeypatch):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, eager = training(SHARPENED, counter, "sdpa"), training(SHARPENED, None, "sdpa")
    batch = draw(3, kinds)
    wanted = outcome(eager, batch)
    monkeypatch.setattr("lab.model.block.attend_layout", pytest.fail)
    kernel, under_autocast = CAUSAL_KERNELS["sdpa"], []
    monkeypatch.setitem(
        CAUSAL_KERNELS, "sdpa", lambda *args: under_autocast.append(torch.is_autocast_enabled("cpu")) or kernel(*args)
    )
    assert_close(outcome(compiled, batch), wanted)
    assert counter.frame_count == 2
    with torch.autocast("cpu", torch.bfloat16):
        outcome(compiled, batch)
    assert not any(under_autocast), "it would round the float32 inputs"


def test_windows_stay_between_two_graphs(kernels, monkeypatch):
    torch._dynamo.reset()
    cfg = replace(CFG, layers=LayersConfig(pattern=("window", "full"), window=5))
    counter = CompileCounterWithBackend("aot_eager")
    compiled, eager = training(ROPE, counter, cfg=cfg), training(ROPE, cfg=cfg)
    packs = [draw(seed, ()) for seed in range(3)]
    wanted = [outcome(eager, batch) for batch in packs]
    monkeypatch.setattr("lab.model.block.attend_layout", pytest.fail)
    for batch, expected in zip(packs, wanted, strict=True):
        assert_close(outcome(compiled, batch), expected)
    assert counter.frame_count == 2


def test_a_run_that_is_asked_to_stop_compiles_nothing(kernels):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    state, eager = training(ROPE, counter), training(ROPE)
    fabric = SimpleNamespace(no_backward_sync=lambda _: nullcontext(), backward=Tensor.backward)
    parts = SimpleNamespace(fabric=fabric, stopping=Stopping(Launch()))
    for is_asked, graphs in ((True, 0), (False, 2), (True, 2)):
        parts.stopping.is_asked = is_asked
        for training_state in (state, eager):
            train_pack(parts, training_state, draw(0, ()), is_last=False)
        assert counter.frame_count == graphs
    found, expected = ([p.grad for p in x.decoder.parameters()] for x in (state, eager))
    assert_close(found, expected)


WARNED = """
import os, signal, torch
from torch._inductor import async_compile
from lab.model.devices import inductor
signal.signal(signal.SIGUSR1, lambda *_: print("warned"))
async_compile.has_triton_package = lambda: True  # for whose kernels there are workers
torch.compile(lambda x: x + 1, backend=inductor)(torch.ones(3))
workers = async_compile.AsyncCompile
workers.wait_pool_ready()
os.killpg(0, signal.SIGUSR1)  # all processes of a step, as SLURM does
print(workers.process_pool().submit(workers._get_ready).result(timeout=60))
"""


@pytest.mark.slow
def test_compile_workers_outlive_a_warning_of_all_processes():
    done = python("-c", WARNED)
    assert done.stdout.split() == ["warned", "ready"], done.stderr


CPU, GPU, ON = torch.device("cpu"), torch.device("cuda"), "--train.compile=true"
CHOICES = {  # settings, device, whether blocks are compiled, and words of the reason
    "gpu": ((), GPU, True, "two graphs, before and after attention"),
    "off": (("--train.compile=false",), GPU, False, "set in the config"),
    "cpu": ((), CPU, False, "with train.compile=true only"),
    "cpu_on": ((ON,), CPU, True, "two graphs"),
}


@pytest.mark.parametrize(("words", "device", "compiled", "reason"), CHOICES.values(), ids=CHOICES)
def test_the_choice_and_its_reason(monkeypatch, words, device, compiled, reason):
    monkeypatch.setattr("lab.model.devices.compiles", lambda device: True)
    made = choose_compile(load(*words).train.compile, device)
    assert made[0] is compiled
    assert reason in made[1]


WORKS = {  # the device, the variable of its compiler and a script in its place, whether torch.compile then works
    "cpu": ("cpu", None, None, True),
    "no_cxx": ("cpu", "CXX", None, False),
    "broken_cxx": ("cpu", "CXX", "exit 1", False),
    "cxx_builds_nothing": ("cpu", "CXX", "exit 0", False),
    "gpu": ("cuda", None, None, True),
    "broken_cc": ("cuda", "CC", "exit 1", False),
    "no_headers": ("cuda", None, None, False),
}


@pytest.mark.parametrize("name", WORKS)
def test_without_a_working_compiler_blocks_stay_uncompiled_or_the_run_is_refused(monkeypatch, tmp_path, name):
    kind, variable, script, works = WORKS[name]
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "compiler"))
    if script:
        (tmp_path / "compiler").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "compiler").chmod(0o755)
    if name == "no_headers":
        monkeypatch.setattr("sysconfig.get_path", lambda scheme: str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda package: package == "triton")
    compiles.cache_clear()
    if works:
        assert choose_compile(True, torch.device(kind))[0]
        return
    chosen, reason = choose_compile("auto", torch.device(kind))
    assert not chosen
    assert "Python.h" in reason or kind == "cpu"
    with refused("train.compile=true: torch.compile needs {}", error=ConfigError):
        choose_compile(True, torch.device(kind))
    compiles.cache_clear()
