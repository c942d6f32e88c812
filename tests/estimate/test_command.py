"""The command lines: a folder without any file, what fits and what does not, and wrong options."""

from pathlib import Path

import pytest

from lab.config import load_experiment
from lab.counts import PositionCounts
from lab.errors import ConfigError
from lab.estimate.command import (
    assumed_bytes,
    checkpoint_bytes,
    counts_bytes,
    estimate,
    hours_of,
    main,
    paper_utilisation,
    refuse_too_large,
    shard_tokens_of,
)
from lab.estimate.memory import Memory
from lab.fit import SYNTAX, parse, read_arguments
from lab.schema import format_yaml
from lab.train.folder import RunFolder
from tests.estimate.small import small
from tests.forked import ROOT, python
from tests.opened import SIZES

RUN = {
    "model": {**SIZES, "vocab_size": 300},
    "data": {"corpus": {"name": "slimpajama"}, "tokenizer": {"method": "file", "path": "none", "eos": "e"}},
    "optim": {"warmup_steps": 0},
    "train": {"tokens": 4096, "accelerator": "gpu", "strategy": "fsdp", "devices": 2, "batch_tokens": 4096},
}
SHAPE = [f"--model.{name}={str(value).lower()}" for name, value in RUN["model"].items()]
EXTENDED = {"start": {"path": "models/absent"}, **{key: RUN[key] for key in ("optim", "train")}}
STAGE = {"optim": {"warmup_steps": 0}, "data": {"window": 64}}
RECIPE = {
    "folder": "runs/recipe",
    "base": "models/absent",
    "target_len": 256,
    "common": {"data": {"corpus": {"name": "slimpajama"}}, "train": {"tokens": 4096}},
    "tune": STAGE,
    "extend": STAGE,
    "replay": STAGE,
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a config where there is nothing else, and work there."""
    monkeypatch.chdir(tmp_path)

    def write(values):
        (tmp_path / "run.yaml").write_text(format_yaml(values))
        return "run.yaml"

    yield write
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]  # nothing is made


def dry_run(words):
    return estimate(*parse(SYNTAX.read([*words, "--dry_run"])))


def test_a_run_without_shards_tokenizer_or_weights(written):
    text = dry_run([written(RUN), "--memory_gib=80"])
    # 16 x 16 q and out, 8 x 16 k and v, 3 x 24 x 16, 2 x 16 norms: 1,952 a block; 3 of them, 2 x 300 x 16, 16: 15,472
    assert "15,472" in text
    for words in ("run: 2 x fsdp, bf16", "unmeasured", "of 80", "627B", "counts.npz", "28 days"):
        assert words in text
    assert f"weights of a probe (apart) {2 * 15_472:>21,}" in text  # a whole copy in bf16


def test_an_absent_model_takes_its_shape_from_the_command_line(written):
    text = dry_run([written(EXTENDED), *SHAPE])
    assert "15,472" in text
    with pytest.raises(
        ConfigError, match=r"^start.path=models/absent: .* add --model.d_model=... --model.n_heads=...$"
    ):
        dry_run(["run.yaml", *(w for w in SHAPE if "d_model" not in w and "n_heads" not in w)])


def test_every_stage_of_a_recipe_without_its_base(written, capsys):
    assert main([written(RECIPE), "--dry_run", *(w.replace("--", "--common.") for w in SHAPE)]) == 0
    text = capsys.readouterr().out
    titles = [block.splitlines()[0].split(":")[0] for block in text.split("\n\n\n")]
    assert titles == ["tuned", "extended", "replayed"]
    assert main(["run.yaml", "--dry_run"]) == 2
    assert "--common.model.d_model=..." in capsys.readouterr().err


def test_what_fits_to_the_byte_passes_and_one_byte_more_is_refused():
    experiment = small(strategy="ddp", devices=3)
    kinds = {"parameters": 2, "gradients": 2, "optimizer": 4, "gathered": 0, "activations": 2**30 - 8}
    memory = Memory({}, 0, kinds)
    limit = (memory.total + assumed_bytes(experiment)) / 2**30
    assert limit == 3  # 1 GiB of tensors, 1 for CUDA, 1 for NCCL
    refuse_too_large(experiment, memory, limit)
    refuse_too_large(experiment, memory, None)
    larger = Memory({}, 0, kinds | {"gathered": 1})
    with pytest.raises(ConfigError) as refused:
        refuse_too_large(experiment, larger, limit)
    (line,) = refused.value.faults
    assert line.startswith("train.micro_batch_tokens=128: ")
    for words in ("--memory_gib=3", "3.00 GiB", "train.recompute", "fsdp", "data.window=64"):
        assert words in line


def test_a_refusal_names_what_takes_the_most():
    kinds = {"parameters": 2**32, "gradients": 0, "optimizer": 0, "gathered": 0, "activations": 8}
    with pytest.raises(ConfigError, match=r"^train.strategy=fsdp: .*raise train.devices") as refused:
        refuse_too_large(small(strategy="fsdp", devices=3, recompute=True), Memory({}, 0, kinds), 1)
    assert "recompute" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param(["--memory_gib=0"], "--memory_gib=0: must be > 0; ", id="no_memory"),
        pytest.param(["--memory_gib=many"], "--memory_gib=many: must be a number; ", id="no_number"),
        pytest.param(["--memory_gib=.nan"], "--memory_gib=nan: must be finite; ", id="not_a_number"),
        pytest.param(["--resume"], "--resume: would be ignored", id="another_flag"),
        pytest.param(["--memory=80"], "memory=80: unknown setting", id="misspelt"),
    ],
)
def test_a_wrong_option_is_status_2_and_one_line(written, capsys, words, line):
    assert read_arguments([written(RUN), "--dry_run", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(line)


def test_the_command_refuses_with_status_2_and_one_line(written):
    done = python("-m", "lab.fit", written(RUN), "--dry_run", "--memory_gib=1", cwd=Path.cwd())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "--memory_gib=1" in done.stderr


def test_the_papers_run_takes_the_papers_time_and_space():
    tiny = load_experiment(ROOT / "configs/tiny_2k.yaml")
    assert hours_of(tiny, "A100") / 24 == pytest.approx(28, abs=0.01)
    # matrices: 22 x (2048 x (2 x 2048 + 2 x 256) + 3 x 2048 x 5632) + 128256 x 2048 = 1,231,552,512 weights;
    # 6 x that + 12 x 22 x 2048 x 1024 pairs = 7,942,963,200
    assert tiny.model.flops_per_token_causal(2048) == 7_942_963_200
    # 12 bytes a parameter; 256 streams of 257 places of 8 bytes
    assert checkpoint_bytes(tiny) == 12 * 1_494_312_960 + 256 * 257 * 8 + counts_bytes(tiny)
    assert shard_tokens_of(tiny.data, 5)[0] == 627_000_000_000
    assert shard_tokens_of(small().data, 5)[0] == 5


def test_hours_by_hand():
    # weights in products: 2 x (8 x (16 + 8) + 3 x 8 x 12) + 160 = 1120; 6 x 1120 + 12 x 2 x 8 x 32 = 12,864 a token
    plain = hours_of(small(), "A100")
    assert plain == pytest.approx(12_864 * 768 / (312e12 * paper_utilisation()) / 3600)
    assert hours_of(small(recompute=True, devices=3), "A100") == pytest.approx(plain * 4 / 3 / 3)


def test_the_bytes_of_counts_are_those_of_the_file(tmp_path):
    experiment = small()
    RunFolder(tmp_path).write_counts(PositionCounts(experiment.reach))
    assert counts_bytes(experiment) == (tmp_path / "counts.npz").stat().st_size
