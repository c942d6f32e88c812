"""lab.prepare with upsampling and related order: what it prints, draws and refuses."""

import json
from pathlib import Path

import pytest

from lab.data.preparation import shard_folder
from lab.errors import ConfigError, LabError
from lab.prepare import SYNTAX, carry_out, parse
from tests.data.slim import SOURCES, slim_corpus, word_tokenizer
from tests.fits import CONFIG
from tests.forked import python

PNG = b"\x89PNG\r\n\x1a\n"


def asked_for(words):
    return parse(SYNTAX.read(words))


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
RELATED = ["--data.mode=concatenated", "--data.order=related"]


def test_the_tables_are_printed_and_drawn_again_and_again(words, tmp_path, capsys):
    asked = [*words, *UPSAMPLE, f"--plot={tmp_path / 'mixture.png'}"]
    first = carry_out(asked_for(asked))
    summary, sources, lengths, quantiles, picture = first.split("\n\n")
    folder = Path(summary.partition(":")[0])
    assert folder == shard_folder(asked_for(asked).data)
    assert [line.split()[0] for line in sources.splitlines()[1:5]] == [
        row["source"] for row in json.loads((folder / "upsampling.json").read_text())["sources"]
    ]
    assert {line.split()[0] for line in sources.splitlines()} >= {*SOURCES, "all"}
    assert lengths.startswith("length (tokens)")
    assert "of the tokens, after" in quantiles
    assert picture == f"picture: {tmp_path / 'mixture.png'}"
    assert (tmp_path / "mixture.png").read_bytes().startswith(PNG)
    (tmp_path / "mixture.png").unlink()
    assert carry_out(asked_for(asked)) == first
    assert (tmp_path / "mixture.png").exists()


def test_related_order_says_the_similarity_before_and_after(words):
    both = carry_out(asked_for([*words, *UPSAMPLE, *RELATED])).split("\n\n")
    assert len(both) == 5
    alone = carry_out(asked_for([*words, *RELATED])).split("\n\n")
    assert len(alone) == 2
    for text in (both[-1], alone[-1]):
        name, _, numbers = text.partition(": ")
        assert name == "similarity of neighbours"
        before, after = map(float, numbers.split(" -> "))
        assert before < after


def test_shares_of_a_job_array_say_what_is_left(words):
    said = carry_out(asked_for([*words, *UPSAMPLE, "--task=0/2"]))
    assert said.endswith("; some shards are missing, run it again for all tasks")
    said = carry_out(asked_for([*words, *UPSAMPLE, "--task=1/2"]))  # completes the corpus, derives its own share
    assert said.endswith("; some shards are missing, run it again for all tasks")
    assert "copies of short" in carry_out(asked_for([*words, *UPSAMPLE, "--task=0/2"]))
    assert carry_out(asked_for([*words, *UPSAMPLE, "--verify"])).split("\n\n")[0].endswith("all hashes match")


def test_mistakes_are_one_line(words, tmp_path):
    with pytest.raises(
        ConfigError, match=r"^--plot=x\.png: would be ignored, it draws what data\.upsample changes; set"
    ):
        asked_for([*words, "--plot=x.png"])
    with pytest.raises(ConfigError, match=r"^data\.upsample\.share=1\.5: must be < 1; Share of each source's tokens"):
        asked_for([*words, "--data.upsample.share=1.5"])
    with pytest.raises(ConfigError, match=r"^data\.order=related: would be ignored, in mode natural no segment holds"):
        asked_for([*words, "--data.mode=natural", "--data.order=related"])
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"^\S+file/a\.png: cannot be written") as caught:
        carry_out(asked_for([*words, *UPSAMPLE, f"--plot={tmp_path / 'file' / 'a.png'}"]))
    assert "\n" not in str(caught.value)


def test_a_threshold_beyond_all_documents_is_status_2(words):
    done = python("-m", "lab.prepare", *words, "--data.upsample.longer_than=4096")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("data.upsample.longer_than=4096: nothing to upsample, the longest ")
    assert "Traceback" not in done.stderr
