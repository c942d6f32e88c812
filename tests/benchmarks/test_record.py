import sys

import pytest

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
