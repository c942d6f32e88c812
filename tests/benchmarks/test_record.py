"""Every benchmark at toy size; the comparison of training speeds by hand, and one model on both of its sides."""

import sys
import weakref

import pytest
import torch

from benchmarks import attention, generation, loader, record, tokenize, train
from tests.forked import ROOT

SMALL = {"SHARDS": 3, "DOCUMENTS": 3000, "SMALL": 3000, "PACKS": 2, "ROUNDS": 2, "STEPS": 2, "STEP_S": 0.01}
SMALL |= {"LATE": 10**6, "STARTS": {"import lab": ("-c", "import lab")}}
CASES = {  # by module: the command line, and its sizes
    attention: ("--windows=16,32 --tokens=32 --turns=1 --methods=string", {"WIDTH": 8}),
    train: ("--sides=ours --sizes=tiny --windows=8,16 --packs=32 --rounds=2", {"peak_of": lambda device, dtype: 1e9}),
    generation: (
        "--shapes=tiny --lengths=16,32 --batches=2 --most-tokens=32 --new-tokens=4 --turns=1",
        {"SHAPES": {"tiny": train.SIZES["tiny"]()}},
    ),
    tokenize: ("--turns=1", {"TEXTS": 20, "VOCABULARY": 300}),
    loader: ("", SMALL),
}


@pytest.mark.parametrize("module", CASES, ids=lambda module: module.__name__)
def test_every_benchmark_writes_records_and_its_table(module, tmp_path, monkeypatch, capsys):
    words, sizes = CASES[module]
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["benchmark", *words.split(), f"--json={tmp_path / 'r.jsonl'}"])
    module.main()
    records = record.read(tmp_path / "r.jsonl")
    assert {r.benchmark for r in records} == {module.__name__.removeprefix("benchmarks.")}
    assert {r.status for r in records} - {"skipped"} == {"ok"}
    assert capsys.readouterr().out


def test_the_speeds_of_the_page_are_those_of_the_records():
    page = (ROOT / "docs/scale.md").read_text()
    records = record.read(ROOT / "benchmarks/records/speed.jsonl")
    assert (len(records), {one.commit[:8] for one in records}) == (33, {"adeb5a0c"})
    speeds = [one.figures["tokens_per_cpu_s"] for one in records if "tokens_per_cpu_s" in one.figures]
    assert [f"{speed:,.0f}" in page for speed in speeds] == [True] * 12


CELL = train.Cell("tiny", 8, 16, "float32")
CPU = torch.device("cpu")


def test_ratios_are_medians_of_rounds_against_the_fastest_peer(tmp_path):
    seconds = {"ours": [2.0, 4.0, 3.0], "slow": [9.0] * 3, "fast": [4.0, 4.0, 6.0]}
    spent = {name: train.Spent(each, [1.0] * 3) for name, each in seconds.items()}
    train.compare(CELL, spent, CPU, record.Log("train", tmp_path / "r.jsonl"))
    (written,) = record.read(tmp_path / "r.jsonl")
    assert written.figures == {"best": "fast", "ratio": 2.0, "low": 1.5, "high": 2.0}  # 2, 1 and 2


def test_speed_by_hand():
    row = train.figures(CELL, train.Spent([0.5, 0.25, 0.25], [1.0] * 3), 2, CPU, peak=1e9)
    assert (row["tokens_per_cpu_s"], row["tokens_per_s"]) == (2 * 16 / 0.25, 32)
    weights = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 128 * 32  # one layer: q and out, k and v, 64 in between; head
    assert row["flops_per_token_causal"] == 6 * weights + 12 * 32 * 4
    assert row["utilisation"] == pytest.approx(row["flops_per_token_causal"] * 128 / 1e9)


@pytest.mark.parametrize(("fitting", "status"), [(9, 0), (1, 0), (0, 1)], ids=["together", "in_turn", "nothing"])
def test_sides_that_do_not_fit_together_are_built_and_freed_in_turn(monkeypatch, capsys, tmp_path, fitting, status):
    own, alive, most = train.stepper, [], []

    def stepper(side, batch):
        alive.append(weakref.ref(side.model))
        most.append(sum(model() is not None for model in alive))
        return own(side, batch)

    monkeypatch.setattr(train, "stepper", stepper)
    monkeypatch.setattr(
        train, "total_memory", lambda device: fitting * train.BYTES * train.SIZES["tiny"]().n_parameters()
    )
    monkeypatch.setattr(train, "peak_of", lambda device, dtype: 1e9)
    monkeypatch.setattr(train, "SIDES", ("litgpt", "ours", "ours_again"))
    monkeypatch.setitem(sys.modules, "litgpt", None)  # not installed
    words = "--sides=litgpt,ours,ours_again --sizes=tiny --windows=8 --packs=16 --dtypes=float32 --rounds=1 --warm_up=0"
    monkeypatch.setattr(sys, "argv", ["benchmark", *words.split(), f"--json={tmp_path / 'r.jsonl'}"])
    assert train.main() == status
    statuses = {one.case: one.status for one in record.read(tmp_path / "r.jsonl")}
    ours = "ok" if fitting else "skipped"
    assert statuses == {"litgpt": "skipped", "ours": ours, "ours_again": ours}
    assert max(most, default=0) == min(fitting, 2)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert sum(": litgpt: " in line for line in lines) == 1


@pytest.mark.parametrize(
    ("words", "status"),
    [("--packs=7", 1), ("--packs=8 --steps=0", 1), ("--packs=8 --rounds=0", 1), ("--packs=8 --sides=ours,other", 2)],
)
def test_cells_that_measure_nothing_and_unknown_sides_are_rejected_in_a_line(monkeypatch, capsys, words, status):
    command = f"benchmark --sides=ours --sizes=tiny --windows=8 --dtypes=float32 {words}"
    monkeypatch.setattr(sys, "argv", command.split())
    assert train.main() == status
    written = capsys.readouterr()
    (line,) = [*written.out.splitlines()[2:], *written.err.splitlines()]
    assert ("measures nothing" if status == 1 else "--sides=ours,other: ") in line


@pytest.mark.slow
def test_all_sides_have_one_model_and_loss():
    """The same weights for the lab and transformers give the same loss."""
    cfg = train.SIZES["tiny"]()
    tokens = torch.randint(cfg.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    ours = train.ours(cfg, 2, 8, CPU, "float32", compiled=False)
    theirs = train.transformers(cfg, CPU, "float32", compiled=False)
    theirs.model.load_state_dict(generation.in_transformers(ours.model).state_dict())
    losses = [peer.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for peer in (ours, theirs)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
