"""The command lines: a folder without any file, what fits and what does not, and wrong options."""

from functools import partial

import pytest
import torch

from lab import fit
from lab.config import load_experiment
from lab.core.command import run
from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml
from lab.longrecipe import __main__ as longrecipe
from lab.train import dry_run as dry_runs
from lab.train.dry_run import UTILISATION, describe_work, estimate, estimate_hours, needed_here, refuse_too_large
from lab.train.environment import checkpoint_bytes, counts_bytes
from lab.train.memory import Memory
from tests.estimate.small import small
from tests.forked import ROOT
from tests.opened import SIZES
from tests.refusals import check_faults, refused

RUN = {
    "model": {**SIZES, "vocab_size": 300},
    "data": {"corpus": {"name": "slimpajama"}, "tokenizer": {"method": "file", "path": "none", "eos": "e"}},
    "optim": {"warmup_steps": 0},
    "train": {"tokens": 4096, "accelerator": "gpu", "precision": "bf16", "devices": 2, "batch_tokens": 4096},
}
SHAPE = [f"--model.{name}={str(value).lower()}" for name, value in RUN["model"].items()]
EXTENDED = {"start": {"path": "models/absent"}, **{key: RUN[key] for key in ("optim", "train")}}
STAGE = {"optim": {"warmup_steps": 0}, "data": {"window": 64}}
RECIPE = {"folder": "runs/recipe", "base": "models/absent", "target_len": 256}
RECIPE |= {"common": {"data": {"corpus": {"name": "slimpajama"}}, "train": {"tokens": 4096}}}
RECIPE |= dict.fromkeys(("tune", "extend", "replay"), STAGE)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a config where there is nothing else, and work there."""
    monkeypatch.chdir(tmp_path)

    def write(values):
        (tmp_path / "run.yaml").write_text(format_yaml(values))
        return "run.yaml"

    yield write
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]  # nothing is made


def dry_run(words, capsys):
    work = lambda experiment, options: estimate(experiment, options.memory_gib, options.utilisation)  # noqa: E731
    status = fit.read_arguments([*words, "--dry_run"], work)
    out, err = capsys.readouterr()
    return status, out or err


def test_a_run_without_shards_tokenizer_or_weights(written, capsys):
    status, text = dry_run([written(RUN), "--memory_gib=80"], capsys)
    # 16 x 16 q and out, 8 x 16 k and v, 3 x 24 x 16, 2 x 16 norms: 1,952 a block; 3 of them, 2 x 300 x 16, 16: 15,472
    assert (status, "15,472" in text) == (0, True)
    for words in ("run: 2 x fsdp, bf16", "unmeasured", "1,254.00 GB", "counts.npz", "weights of a probe (apart)"):
        assert words in text


def test_an_absent_model_takes_its_shape_from_the_command_line(written, capsys):
    assert "15,472" in dry_run([written(EXTENDED), *SHAPE], capsys)[1]
    status, line = dry_run(["run.yaml", *(w for w in SHAPE if "d_model" not in w and "n_heads" not in w)], capsys)
    assert (status, len(line.splitlines())) == (2, 1)
    assert line.startswith("start.path=models/absent: no such folder; ")
    assert line.endswith(" set model.d_model, model.n_heads\n")


def test_every_stage_of_a_recipe_without_its_base(written, capsys):
    main = partial(run, longrecipe.SPEC, partial(longrecipe.dry_run, estimate))
    assert main([written(RECIPE), "--dry_run", *(w.replace("--", "--common.") for w in SHAPE)]) == 0
    text = capsys.readouterr().out
    titles = [block.splitlines()[0].split(":")[0] for block in text.split("\n\n\n")]
    assert titles == ["tuned", "extended", "replayed"]
    assert main(["run.yaml", "--dry_run"]) == 2
    assert "set model.d_model, model.n_layers" in capsys.readouterr().err


def test_what_fits_to_the_byte_passes_and_one_byte_more_is_refused():
    # 2 + 17 GiB are 95% of 20
    kinds = {"parameters": 2, "gradients": 2, "optimizer": 4, "gathered": 0, "activations": 17 * 2**30 - 8}
    refuse_too_large(Memory(0, kinds), 2 * 2**30, 20)
    line = "--memory_gib=20: must be >= 20.00, the peak of each GPU and 5% to spare, with 17.00 of activations and "
    with pytest.raises(ConfigError, match=f"^{line}.*; set train.recompute=true or train.strategy=fsdp, "):
        refuse_too_large(Memory(0, kinds | {"gathered": 1}), 2 * 2**30, 20)


def test_what_is_missing_is_listed_with_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {**RUN, "probe": {"haystack": "essays.txt", "protocol": "released"}, "track": {"wandb": "off"}}
    (tmp_path / "run.yaml").write_text(format_yaml(values))
    experiment = load_experiment(tmp_path / "run.yaml")
    found = dict(line.split(maxsplit=1) for line in needed_here(experiment).splitlines())
    assert found.pop("packages") == "here"
    begin = ("data.tokenizer.path=none: ", "data.corpus.name=slimpajama: ", "probe.haystack=essays.txt: ")
    brings = ("hf download ", "probe-lab prepare ", "curl -LO https://")
    for need, start, command in zip(("tokenizer", "shards", "haystack"), begin, brings, strict=True):
        assert found[need].startswith(f"missing: {start}")
        assert command in found[need]
    assert torch.cuda.is_available() or found["GPU"].startswith("missing: train.accelerator=gpu: ")
    (tmp_path / "essays.txt").write_text("some text")
    (tmp_path / "none").write_text("{}")
    found = dict(line.split(maxsplit=1) for line in needed_here(experiment).splitlines())
    assert (found["haystack"], found["tokenizer"]) == ("here", "here")


WRONG = {
    "--utilisation=40": "--utilisation=40: must be a number > 0 and <= 1",
    "--resume": "--resume: contradicts --dry_run",
    "--memory_gib=1": "--memory_gib=1: must be >= ",
}


@pytest.mark.parametrize(("word", "line"), WRONG.items(), ids=WRONG)
def test_a_wrong_option_is_status_2_and_one_line(written, capsys, word, line):
    status, text = dry_run([written(RUN), word], capsys)
    assert status == 2
    check_faults(text.splitlines(), [line])


def test_a_limit_without_a_dry_run_is_refused():
    with refused("--memory_gib=1: would be ignored"):
        fit.parse(fit.SPEC.read(["run.yaml", "--memory_gib=1"]))


def test_the_papers_run_takes_the_papers_time_and_space():
    tiny = load_experiment(ROOT / "configs/tiny_2k.yaml")
    assert estimate_hours(tiny, "A100") / 24 == pytest.approx(28, abs=0.01)
    # matrices: 22 x (2048 x (2 x 2048 + 2 x 256) + 3 x 2048 x 5632) + 128256 x 2048 = 1,231,552,512 weights;
    # 6 x that + 12 x 22 x 2048 x 1024 pairs = 7,942,963,200
    assert tiny.model.flops_per_token_causal(2048) == 7_942_963_200
    assert pytest.approx(0.66, abs=0.005) == UTILISATION
    work = describe_work(tiny, UTILISATION)
    assert {"7,942,963,200", "8,496,611,328"} <= {*work["FLOPs per token"].split()}
    assert "0.66 (mfu; mfu_full 0.70)" in work["wall hours"]  # 0.657 x 8,496,611,328 / 7,942,963,200 = 0.703
    # 12 bytes a parameter; 128 streams of 258 places of 8 bytes
    assert checkpoint_bytes(tiny) == 12 * 1_494_312_960 + 128 * 258 * 8 + counts_bytes(tiny)
    assert [dry_runs.shard_tokens(one.data, 5) for one in (tiny, small())] == [627_000_000_000, 5]


@pytest.mark.parametrize("name", ["tiny_2k", "tiny_4k"])
def test_the_papers_runs_take_the_largest_packs_that_fit_80_gib(name):
    path = ROOT / f"configs/{name}.yaml"
    own = load_experiment(path)
    estimate(own, "72")  # a tenth is left for fragments and workspaces
    assert own.train.batch_tokens == own.train.accumulation * own.train.world_size * own.train.micro_batch_tokens
    with refused("--memory_gib=80: must be >= 1{}"):
        estimate(load_experiment(path, {"train.micro_batch_tokens": 2 * own.train.micro_batch_tokens}), "80")


def test_hours_by_hand():
    # weights in products: 2 x (8 x (16 + 8) + 3 x 8 x 12) + 160 = 1120; 6 x 1120 + 12 x 2 x 8 x 32 = 12,864 a token
    plain = estimate_hours(small(), "A100")
    assert plain == pytest.approx(12_864 * 768 / (312e12 * UTILISATION) / 3600)
    assert estimate_hours(small(recompute=True, devices=3), "A100") == pytest.approx(plain * 4 / 3 / 3)
