"""eval.perplexity under torchrun: several processes score every window together, as one does."""

import sys

import pytest

from eval.passkey import main as passkey
from eval.perplexity import main
from tests.eval.commands import check_faults, rows_named, runner
from tests.launching import environment, port, running

run = runner(main)
rows_of = rows_named("perplexity.jsonl")
SIZES = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
TOLERANCE = 1e-5  # of a float32 decoder, relative
METHODS = {
    "plain": (),
    "dynamic_ntk": (
        "--position.frequency.method=dynamic_ntk",
        "--position.frequency.factor=2",
        "--position.frequency.train_len=8",
    ),
    "string": ("--position.distance.method=string", "--position.distance.shift=6", "--position.distance.window=2"),
}


def started(folder, words, world):
    """Run the command in so many processes, each with the variables that torchrun sets."""
    common = {
        "TORCHELASTIC_RUN_ID": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port()),
        "OMP_NUM_THREADS": "1",
    }
    numbers = {name: str(world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    command = [sys.executable, "-m", "eval.perplexity", *map(str, words), "-o", str(folder)]
    tasks = [(command, environment(**common, **numbers, RANK=str(n), LOCAL_RANK=str(n))) for n in range(world)]
    with running(folder, tasks) as processes:
        return processes.finish()


@pytest.mark.parametrize("method", ["plain", "dynamic_ntk", "string"])
def test_two_processes_measure_as_one(run_folder, tmp_path, capsys, method):
    words = [run_folder, "--documents=3", "--lengths=15,24", "--stride=8", *METHODS[method]]
    assert run([*words, "-o", tmp_path / "one"], capsys)[0] == 0
    statuses, outputs = started(tmp_path / "two", words, 2)
    assert statuses == [0, 0], outputs
    assert "written to" in outputs[0]
    assert not outputs[1]
    one, two = (rows_of(tmp_path / name) for name in ("one", "two"))
    assert [row["scored_tokens"] for row in two] == [row["scored_tokens"] for row in one]
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=TOLERANCE)


def test_processes_that_cannot_divide_the_heads_are_refused(run_folder, tmp_path):
    statuses, outputs = started(tmp_path, [run_folder, "--lengths=16", "--documents=2"], 3)
    assert statuses == [2, 2, 2]
    rule = "--nproc-per-node=3: processes that share a window must divide the 2 key-value heads"
    for output in outputs:
        check_faults(output.splitlines(), [f"{rule}{{}}"])


def test_commands_that_share_no_work_refuse_to_run_as_copies(run_folder, monkeypatch, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", **dict.fromkeys(("RANK", "LOCAL_RANK"), "0"), **SIZES}.items():
        monkeypatch.setenv(name, value)
    assert passkey([str(run_folder)]) == 2
    check_faults(
        capsys.readouterr().err.splitlines(), ["torchrun: 2 processes of eval.passkey would measure the same{}"]
    )
