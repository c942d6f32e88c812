"""What is recorded of an upsampling, how its shards are named, and which settings are refused."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lab.data.config import DataConfig, Synthetic, Upsample
from lab.data.mixture import quantiles, tables
from lab.data.preparation import is_prepared, prepare, shard_folder
from lab.data.upsampling import refuse_no_change
from lab.errors import ConfigError, DataError
from lab.settings import Raw, validated
from tests.data.slim import LONG, SHARE, SOURCES, documents, flat, tokens_by_class
from tests.data.stores import refused

ROOT = Path(__file__).resolve().parents[2]


def test_the_record_counts_what_the_shards_hold(config):
    prepare(config, progress=False)
    record = json.loads((shard_folder(config) / "upsampling.json").read_text())
    assert {key: record[key] for key in ("longer_than", "share", "tokens")} == {
        "longer_than": LONG, "share": SHARE, "tokens": None
    }  # fmt: skip
    base, derived = flat(documents(config.base)), flat(documents(config))
    check_counts(record["all"], base, derived)
    assert [row["source"] for row in record["sources"]] == sorted(
        SOURCES, key=lambda s: -sum(len(ids) for source, ids in base if source == s)
    )
    for row in record["sources"]:
        mine, theirs = ([item for item in items if item[0] == row["source"]] for items in (derived, base))
        check_counts(row, theirs, mine)
        total = {"before": tokens_by_class(base).total(), "after": tokens_by_class(derived).total()}
        for when, part in row["tokens"].items():
            assert row["share_of_tokens"][when] == pytest.approx(part / total[when])
    kept = {row["source"]: row["kept_because"] for row in record["sources"]}
    assert kept["RedPajamaC4"] == "no long documents"
    assert kept["RedPajamaArXiv"] == "no short documents"
    for row in record["histogram"]:
        for when, items in (("before", base), ("after", derived)):
            inside = [len(ids) for _, ids in items if row["from"] <= len(ids) < 2 * row["from"]]
            assert (row["documents"][when], row["tokens"][when]) == (len(inside), sum(inside))
    assert sum(row["documents"]["before"] for row in record["histogram"]) == len(base)
    lengths = sorted(len(ids) for _, ids in derived)
    found = dict(zip(record["quantiles"]["at"], record["quantiles"]["of_documents"]["after"], strict=True))
    assert found[0.5] == lengths[math.ceil(0.5 * len(lengths)) - 1]
    each_token = sorted(length for length in lengths for _ in range(length))
    found = dict(zip(record["quantiles"]["at"], record["quantiles"]["of_tokens"]["after"], strict=True))
    assert found[0.25] == each_token[math.ceil(0.25 * len(each_token)) - 1]


def check_counts(row, base, derived):
    had, got = Counter(base), Counter(derived)
    assert row["documents"] == {"before": len(base), "after": len(derived)}
    sums = {when: tokens_by_class(items) for when, items in (("before", base), ("after", derived))}
    assert row["tokens"] == {when: s.total() for when, s in sums.items()}
    for when, s in sums.items():
        assert row["long"][when] == pytest.approx(sum(n for (_, is_long), n in s.items() if is_long) / s.total())
    assert row["repeated_tokens"] == sum((n - 1) * len(ids) for (_, ids), n in got.items())
    assert row["left_out_documents"] == len(had.keys() - got.keys())
    assert row["left_out_tokens"] == sum(len(ids) for _, ids in had.keys() - got.keys())


def test_quantiles_of_a_handful():
    # 10 documents, 136 tokens: 6 of 1, 3 of 10, 1 of 100; 13.6 tokens lie up to length 10, 34 up to 10, 68 up to 100
    lengths = Counter({1: 6, 10: 3, 100: 1, 50: 0})
    assert quantiles(lengths, 0) == [1, 1, 1, 10, 10, 100, 100]
    assert quantiles(lengths, 1) == [10, 10, 100, 100, 100, 100, 100]
    assert quantiles(Counter(), 0) == []


def test_tables_show_the_record(config):
    prepare(config, progress=False)
    record = json.loads((shard_folder(config) / "upsampling.json").read_text())
    text = tables(record)
    (line,) = [line for line in text.splitlines() if line.startswith("RedPajamaGithub")]
    (row,) = [row for row in record["sources"] if row["source"] == "RedPajamaGithub"]
    assert f"{row['documents']['before']:,} -> {row['documents']['after']:,}" in line
    assert f"{row['long']['before']:.1%} -> {row['long']['after']:.1%}" in line
    assert f"{row['copies_of_long']:.3f}" in line
    assert "kept: no long documents" in text
    assert max(len(line) for line in text.splitlines()) < 180


# identity and mistakes


def test_shards_of_a_corpus_keep_their_name_and_every_setting_names_others(config):
    plain = config.base
    assert plain == DataConfig(
        corpus=plain.corpus, tokenizer=plain.tokenizer, window=32, held_out_frac=0.1, folder=plain.folder
    )
    assert set(plain.shard_identity()) == {"corpus", "tokenizer", "held_out_frac"}
    changes = [{"longer_than": 101}, {"share": 0.81}, {"tokens": 100}, {}]
    names = {replace(config, upsample=replace(config.upsample, **change)).shard_name for change in changes}
    assert len({*names, plain.shard_name}) == len(changes) + 1
    assert replace(config, tags=True).base == replace(plain, tags=True)
    assert config.shard_name.startswith("slimpajama-upsampled-")
    assert replace(config, window=64).shard_name == config.shard_name


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"longer_than": 300}, "longer_than=300: nothing to upsample, the longest document has {} tokens"),
        ({"share": 0.01}, "share=0.01: changes no source (of 4: 1 no long documents, 1 no short doc"),
        ({"tokens": 1}, "tokens=1: leaves no document"),
    ],
)
def test_settings_that_change_nothing_are_refused(config, settings, rule):
    wrong = replace(config, upsample=replace(config.upsample, **settings))
    with refused(f"data.upsample.{rule}"):
        prepare(wrong, progress=False)
    assert not shard_folder(wrong).exists()


def test_the_line_names_the_longest_document(config):
    prepare(config.base, progress=False)
    longest = max(len(ids) for _, ids in flat(documents(config.base)))
    with refused(f"data.upsample.longer_than={longest}: {{}}the longest document has {longest} tokens"):
        prepare(replace(config, upsample=Upsample(longer_than=longest)), progress=False)
    with pytest.raises(DataError, match="changes no source"):  # all documents are long
        refuse_no_change(["no short documents"], Upsample(longer_than=1), longest)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 70])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match=r"^share=\S+: must be [<>] [01]"):
        Upsample(share=share)


def test_settings_are_read_from_yaml_and_unknown_ones_refused():
    raw = Raw({"upsample": {"longer_than": 100, "share": 0.5}}, "x")
    assert validated(DataConfig, raw).upsample == Upsample(longer_than=100, share=0.5)
    with pytest.raises(ConfigError, match=r"^upsample.longer=1: unknown setting; did you mean upsample.longer_than\?"):
        validated(DataConfig, Raw({"upsample": {"longer": 1}}, "x"))


def test_a_synthetic_corpus_is_upsampled_where_it_is_needed(tmp_path):
    corpus = Synthetic(documents=200, words=16, median_tokens=16.64, section_tokens=64.0)
    config = DataConfig(corpus=corpus, folder=str(tmp_path), window=64, upsample=Upsample(longer_than=40))
    assert config.embedded
    prepare(config, progress=False)
    assert is_prepared(config)
    record = json.loads((shard_folder(config) / "upsampling.json").read_text())
    assert record["all"]["long"]["after"] == pytest.approx(0.7, abs=0.03)
    assert record["all"]["long"]["before"] < 0.65


def test_the_configs_of_the_paper_differ_in_their_data_by_the_setting():
    read = {
        name: Raw.read(ROOT / "configs" / f"{name}.yaml").values["data"]
        for name in ("anchor_64k", "anchor_128k_upsampled")
    }
    plain, upsampled = (validated(DataConfig, Raw(values, "x")) for values in read.values())
    assert upsampled.upsample == Upsample(longer_than=4096, share=0.7, tokens=2_200_000_000)
    assert upsampled.base == replace(plain, window=131_072)
    assert upsampled.base.shard_name == plain.shard_name
