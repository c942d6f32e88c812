import sys

import pytest

from benchmarks import attention, generation, loader, record, results, tokenize, train
from tests.forked import ROOT


@pytest.mark.parametrize(
    ("module", "words", "sizes"),
    [
        pytest.param(
            attention, ["--windows=16,32", "--tokens=32", "--turns=1", "--methods=string"], {"WIDTH": 8}, id="attention"
        ),
        pytest.param(
            train,
            ["--sides=ours", "--sizes=tiny", "--windows=8,16", "--packs=32", "--rounds=2"],
            {"peak_of": lambda device, dtype: 1e9},
            id="train",
        ),
        pytest.param(
            generation,
            ["--shapes=tiny", "--lengths=16,32", "--batches=2", "--most-tokens=32", "--new-tokens=4", "--turns=1"],
            {"SHAPES": {"tiny": train.SIZES["tiny"]()}},
            id="generation",
        ),
        pytest.param(tokenize, ["--turns=1"], {"TEXTS": 20, "VOCABULARY": 300}, id="tokenize"),
        pytest.param(
            loader,
            [],
            {
                "SHARDS": 3,
                "DOCUMENTS": 3000,
                "SMALL": 3000,
                "PACKS": 2,
                "ROUNDS": 2,
                "STEPS": 2,
                "STEP_S": 0.01,
                "LATE": 10**6,
                "STARTS": {"import lab": ("-c", "import lab")},
            },
            id="loader",
        ),
    ],
)
def test_every_benchmark_writes_records_and_its_table(module, words, sizes, tmp_path, monkeypatch, capsys):
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["benchmark", *words, f"--json={tmp_path / 'r.jsonl'}"])
    module.main()
    records = record.read(tmp_path / "r.jsonl")
    assert {r.benchmark for r in records} == {module.__name__.removeprefix("benchmarks.")}
    assert {r.status for r in records} - {"skipped"} == {"ok"}
    assert capsys.readouterr().out


def test_the_records_of_the_page_of_speed_are_printed_as_tables(monkeypatch, capsys):
    path = ROOT / "benchmarks/records/speed.jsonl"
    monkeypatch.setattr(sys, "argv", ["results", str(path)])
    results.main()
    text = capsys.readouterr().out
    records = record.read(path)
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| stage ")]
    assert len(rows) == len(records) > 30
    page = (ROOT / "docs/scale.md").read_text()
    for one in records:
        assert one.commit.startswith("adeb5a0c")
        if "tokens_per_cpu_s" in one.figures:
            assert f"{one.figures['tokens_per_cpu_s']:,.0f}" in page
