"""Training on one GPU, as lab.fit trains: compiled, sharded, skipped, saved, stopped, measured; on a CPU, too."""

import subprocess

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.installed import list_missing

if list_missing():
    pytest.skip(f"missing: {', '.join(list_missing())}", allow_module_level=True)
pytest.importorskip("psutil")

from safetensors.torch import load_file

from benchmarks.gpu.training import release
from lab.model.devices import inductor
from lab.model.sharding import Sharding
from lab.runs.checkpoints import candidates
from lab.train.loop import compute_loss, finish_gradient, read_statistics, update
from lab.train.memory import measure_memory
from tests.fits import UNPROBED, command, exact_metrics, load, records
from tests.forked import LIMIT_S, ROOT, python
from tests.launching import environment, patched
from tests.model.conftest import GPU
from tests.model.test_compiled_blocks import ROPE, draw, training

ON_GPU = pytest.param("gpu", marks=GPU)
DEVICES, COMPILED = ["cpu", ON_GPU], [pytest.param("cpu", marks=pytest.mark.slow), ON_GPU]
STEPS = 5
SETTINGS = (
    *(*UNPROBED, "--train.strategy=fsdp", "--train.precision=bf16", "--model.n_layers=3", "--optim.warmup_steps=1"),
)
SMALL = ("--model.d_model=64", f"--train.tokens={STEPS * 1024}")
LARGE = (
    *("--model.d_model=2048", "--model.d_ff=5632", "--model.vocab_size=32000", "--train.tokens=65536"),
    *("--model.n_heads=32", "--model.n_kv_heads=4", "--train.batch_tokens=32768", "--train.micro_batch_tokens=16384"),
)
BF16_TOL = 1e-2  # of losses and gradient norms: the devices round to bfloat16 at other operators


def fit(place, name, device, *options, sizes=SMALL, code="", status=0):
    """Train in a process of its own, on a GPU in a new interpreter, as a fork may not use CUDA; return the folder."""
    words = command(place, name, *SETTINGS, *sizes, f"--train.accelerator={device}", *options)
    words, variables = patched(words, code), environment(TORCHINDUCTOR_CACHE_DIR=str(place / "inductor"))
    if device == "cpu":
        done = python(*words[1:], env=variables)
    else:
        more = {"capture_output": True, "text": True, "start_new_session": True, "timeout": LIMIT_S}
        done = subprocess.run(words, cwd=ROOT, env=variables, check=False, **more)
    assert done.returncode == status, done.stderr[-3000:]
    return place / "runs" / name


@pytest.mark.parametrize("device", COMPILED)
def test_compiled_sharded_steps_are_those_of_an_eager_cpu(place, device):
    runs = fit(place, f"compiled_{device}", device, "--train.compile=true"), fit(place, f"eager_{device}", "cpu")
    found, expected = ([(row["loss"], row["grad_norm"]) for row in records(run)] for run in runs)
    assert len(found) == STEPS
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=BF16_TOL, atol=0)


@pytest.fixture
def mesh(device):
    release()
    backend = "gloo" if device == "cpu" else "nccl"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu" if device == "cpu" else "cuda", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
def test_a_planted_nan_changes_no_weight_and_no_moment(device, mesh):
    on_gpu = mesh.device_type == "cuda"
    kernel, compiler = ("varlen", inductor) if on_gpu else ("sdpa", None)
    state = training(ROPE, compiler, kernel, mesh=mesh, sharding=Sharding(torch.bfloat16, whole=True))

    def step(seed, factor):
        (factor * compute_loss(state, draw(seed, ()).to(state.device), stop=False)).backward()
        finish_gradient(state)
        update(state)
        entries = state.inner_optimizer.state.items()
        tensors = [x for p, moments in entries for x in (p, moments["exp_avg"], moments["exp_avg_sq"])]
        return read_statistics(state).skipped, [x.full_tensor().detach().clone() for x in tensors]

    _, before = step(0, 1.0)
    skipped, after = step(1, float("nan"))
    assert skipped
    assert all(map(torch.equal, before, after))
    skipped, later = step(2, 1.0)
    assert not skipped
    assert not any(map(torch.equal, after, later))
    assert all(x.isfinite().all() for x in later)


SAVING = """
import time, torch
from lab.runs import shards
from lab.train.checkpoint import Checkpointing
own_save, own_write = Checkpointing.save, shards.write_hashed
def save(self, state, **options):
    if self.saved_at != state.consumed:
        whole = {{name: part.full_tensor().cpu() for name, part in state.decoder.named_parameters()}}
        torch.save(whole, "{}/" + f"{{state.consumed}}.pt")
    own_save(self, state, **options)
def write(*arguments):
    time.sleep(0.3)  # in which the run takes further steps
    return own_write(*arguments)
Checkpointing.save, shards.write_hashed = save, write
"""


@pytest.mark.parametrize("device", DEVICES)
def test_a_background_save_has_the_weights_of_its_step(place, tmp_path, device):
    options = "--train.checkpoint_every_tokens=2000", "--train.keep_checkpoints=5", "--train.async_checkpoints=true"
    run = fit(place, f"saves_{device}", device, *options, code=SAVING.format(tmp_path))
    saved = candidates(run / "checkpoints")
    assert len(saved) == len([*tmp_path.iterdir()]) == 3
    for checkpoint in saved:
        weights = {}
        for file in checkpoint.glob("weights-*"):
            weights |= load_file(file)
        expected = torch.load(tmp_path / f"{int(checkpoint.name.removeprefix('tokens-'))}.pt")
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights)


WARNED = """
import os, signal
from lab.train import loop
own, packs = loop.compute_loss, []
def warned(*arguments, **options):
    packs.append(0)
    if len(packs) == 4:
        os.killpg(0, signal.SIGUSR1)  # all processes of the step, as SLURM does
    return own(*arguments, **options)
loop.compute_loss = warned
"""
COMPILER = '#!/bin/sh\nkill -USR1 0\nexec g++ "$@"\n'


@pytest.mark.parametrize("device", COMPILED)
def test_a_run_that_is_warned_while_it_compiles_or_later_resumes_as_if_it_was_not(place, tmp_path, device):
    compiler, code = tmp_path / "compiler", WARNED
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    if device == "cpu":
        code = f"from torch._inductor import config\nconfig.cpp.cxx = (None, {str(compiler)!r})"
    compiled = "--train.compile=true", "--train.micro_batch_tokens=256"
    run = fit(place, f"warned_{device}", device, *compiled, code=code, status=75)
    assert 0 < len(records(run)) < STEPS
    fit(place, run.name, device, *compiled, "--resume")
    whole = fit(place, f"whole_{device}", device, *compiled)
    if device == "cpu":
        assert exact_metrics(run) == exact_metrics(whole)
    found, expected = ([(row["consumed_tokens"], row["loss"]) for row in records(path)] for path in (run, whole))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=BF16_TOL, atol=0)


PEAK = """
import pathlib, torch
from lab.train.record import Recording
own = Recording.close
def close(self, **options):
    pathlib.Path({!r}).write_text(str(torch.cuda.max_memory_allocated()))
    own(self, **options)
Recording.close = close
"""


@pytest.mark.parametrize("device", DEVICES)
def test_the_dry_run_estimates_the_peak_of_a_gpu(place, tmp_path, device):
    sizes = SMALL if device == "cpu" else LARGE
    fit(place, f"peak_{device}", device, sizes=sizes, code=PEAK.format(str(tmp_path / "peak")))
    found = int((tmp_path / "peak").read_text())
    estimated = measure_memory(load(*SETTINGS, *sizes, f"--train.accelerator={device}")).total
    assert estimated > 0
    assert found == (0 if device == "cpu" else pytest.approx(estimated, rel=0.1))
