"""lab.prepare with upsampling: what it prints and refuses."""

import json
from pathlib import Path

import pytest

from lab.errors import ConfigError
from lab.prepare import SYNTAX, carry_out
from tests.data.slim import SOURCES, slim_corpus, word_tokenizer
from tests.fits import CONFIG
from tests.forked import python


@pytest.fixture
def words(tmp_path):
    """The arguments for a corpus of SlimPajama's form."""
    slim_corpus(tmp_path / "corpus")
    tokenizer = word_tokenizer(tmp_path)
    return [
        str(CONFIG),
        "--data.corpus.name=slimpajama",
        f"--data.corpus.path={tmp_path / 'corpus'}",
        "--data.tokenizer.method=file",
        f"--data.tokenizer.path={tokenizer.path}",
        "--data.tokenizer.eos=<eos>",
        f"--data.folder={tmp_path / 'shards'}",
        "--model.vocab_size=501",
        "--workers=1",
    ]


UPSAMPLE = ["--data.upsample.longer_than=100", "--data.upsample.share=0.9"]


def test_the_tables_are_printed_again_and_again(words):
    asked = [*words, *UPSAMPLE]
    first = carry_out(SYNTAX.read(asked))
    summary, sources, lengths, quantiles = first.split("\n\n")
    folder = Path(summary.partition(":")[0])
    assert [line.split()[0] for line in sources.splitlines()[1:5]] == [
        row["source"] for row in json.loads((folder / "upsampling.json").read_text())["sources"]
    ]
    assert {line.split()[0] for line in sources.splitlines()} >= {*SOURCES, "all"}
    assert lengths.startswith("length (tokens)")
    assert "of the tokens, after" in quantiles
    assert carry_out(SYNTAX.read(asked)) == first


def test_shares_of_a_job_array_say_what_is_left(words):
    said = carry_out(SYNTAX.read([*words, *UPSAMPLE, "--task=0/2"]))
    assert said.endswith("; some shards are missing, run it again for all tasks")
    said = carry_out(SYNTAX.read([*words, *UPSAMPLE, "--task=1/2"]))  # completes the corpus, derives its own share
    assert said.endswith("; some shards are missing, run it again for all tasks")
    assert "copies of short" in carry_out(SYNTAX.read([*words, *UPSAMPLE, "--task=0/2"]))
    assert carry_out(SYNTAX.read([*words, *UPSAMPLE, "--verify"])).split("\n\n")[0].endswith("all hashes match")


def test_a_mistake_is_one_line(words):
    with pytest.raises(ConfigError, match=r"^data\.upsample\.share=1\.5: must be < 1; Share of each source's tokens"):
        carry_out(SYNTAX.read([*words, "--data.upsample.share=1.5"]))


def test_a_threshold_beyond_all_documents_is_status_2(words):
    done = python("-m", "lab.prepare", *words, "--data.upsample.longer_than=4096")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("data.upsample.longer_than=4096: nothing to upsample, the longest ")
    assert "Traceback" not in done.stderr
