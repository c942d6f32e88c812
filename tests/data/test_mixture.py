"""A mixture gives the packs, losses and counts of a reader that is written apart and shares no code with the lab's."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import lab
from eval.demand import main as demand
from lab.config import load_experiment
from lab.core.arguments import parse_overrides
from lab.core.errors import ConfigError
from lab.data.config import Mixture, Stdlib, Text, TokenizerFile
from lab.data.preparation import prepare, prepare_missing, shard_folder
from lab.loading import decoder_builder, open_model
from lab.prepare import main as prepare_command
from lab.train.dry_run import estimate, needed_here
from lab.verify import main as verify
from tests.data.stores import module_of, read_shard, refused, text_config
from tests.data.windows import sample_segment
from tests.fits import CONFIG, SPEED, assert_same_run, cut_after, records, train

SHARES = {"a": Fraction(7, 10), "b": Fraction(1, 5), "c": Fraction(1, 10)}
STREAMS = 3
GOLDEN = int("9E3779B97F4A7C15", 16)
OPTIONS = ("--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")
OPTIONS += ("--probe.every_tokens=4096", "--probe.tests=1", "--probe.step=512", "--probe.max_length=512")
OPTIONS += ("--probe.distance_tests=0", "--probe.distance_points=null", "--data.held_out_frac=0.1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with three corpora, the last of which has few documents, and is read again."""
    place = tmp_path_factory.mktemp("mixture")
    generator = np.random.default_rng(3)
    for name, n in {"a": 300, "b": 90, "c": 30}.items():
        (place / name).mkdir()
        texts = [f"{name} {k} " + " ".join(generator.choice([*"abcdefgh"], k % 38 + 2)) for k in range(n)]
        lines = [json.dumps({"text": text}) for text in texts]
        (place / name / "texts.jsonl").write_text("\n".join(lines))
    return place


def mixture(place, **settings):
    corpora = tuple(Text(path=str(place / name)) for name in SHARES)
    corpus = Mixture(corpora=corpora, weights=tuple(float(3 * share) for share in SHARES.values()))
    return replace(text_config(place, look_ahead=8, **settings), corpus=corpus)


def words(place):
    corpora = [{"path": str(place / name), "weight": float(share)} for name, share in SHARES.items()]
    return (*OPTIONS, f"--data.corpus={json.dumps(corpora)}")


def documents_of(folder, split="train"):
    return [ids for shard in sorted(folder.glob("task-*[0-9]")) for ids, _ in read_shard(shard, split)]


def cut(documents, window, mode="natural"):
    """Cut documents, each or joined, and return every window with its targets, None where nothing is predicted."""
    windows = []
    for text in [documents] if mode == "concatenated" else [[ids] for ids in documents]:
        tokens = [*itertools.chain(*text)]
        targets = [*itertools.chain(*([*ids[1:], None] for ids in text))]
        end = len(tokens) - (mode == "concatenated") * (len(tokens) % window)
        for start in range(0, end, window):
            windows.append((tokens[start : start + window], targets[start : start + window]))
    return windows


def read_packs(corpora, seed, *, pack=64, look_ahead=8, streams=STREAMS):
    """Yield (corpus, windows) of every global pack: the oldest window waiting, then the longest that fit."""
    waiting = {(corpus, j): [] for corpus in range(len(corpora)) for j in range(streams)}
    samples = {key: itertools.count(key[1], streams) for key in waiting}
    for number in itertools.count():
        u = Fraction((seed + number) * GOLDEN % 2**64, 2**64)
        corpus, stream = sum(u >= bound for bound in itertools.accumulate(SHARES.values())), number % streams
        queue, windows = waiting[corpus, stream], corpora[corpus]
        while len(queue) < look_ahead:
            queue.append(windows[sample_segment(next(samples[corpus, stream]), len(windows), seed)])
        chosen = [0]
        for k in sorted(range(1, look_ahead), key=lambda k: -len(queue[k][0])):
            if size(queue[i] for i in chosen) + len(queue[k][0]) <= pack:
                chosen.append(k)
        yield corpus, [queue[k] for k in chosen]
        waiting[corpus, stream] = [window for k, window in enumerate(queue) if k not in chosen]


def size(windows):
    return sum(len(ids) for ids, _ in windows)


def to_row(values, padding):
    row = [padding if value is None else value for value in itertools.chain(*values)]
    return row + [padding] * (64 - len(row))


@pytest.mark.parametrize(("mode", "world_size"), [("natural", 1), ("natural", 3), ("concatenated", 1)])
def test_packs_are_those_of_a_reader_by_definition_after_any_stop(place, mode, world_size):
    config = mixture(place, mode=mode)
    prepare_missing(config)
    corpora = [cut(documents_of(shard_folder(part)), 16, mode) for part in config.parts]
    expected, n_packs, n_tokens = read_packs(corpora, seed=5), np.zeros(3), 0
    ranks = [module_of(config, micro_batch_tokens=64, seed=5, n_streams=STREAMS) for _ in range(world_size)]
    states = {}
    for number in range(180):
        index = number % STREAMS
        if number % (25 * STREAMS) == 0:  # the start, or a stop after 25 steps and a resume
            for rank, data in enumerate(ranks):
                data.setup(rank, world_size)
                data.states = dict(states)
            streams = [ranks[j % world_size].stream(j) for j in range(STREAMS)]
        pack, (corpus, windows) = next(streams[index]), next(expected)
        assert pack.tokens.tolist() == to_row([ids for ids, _ in windows], 0)
        assert pack.targets.tolist() == to_row([targets for _, targets in windows], -100)
        assert pack.corpus == corpus
        states[index] = pack.state
        n_tokens += size(windows) * (corpus == 2)
        n_packs[corpus] += 1
        assert np.abs(n_packs - [float(share * (number + 1)) for share in SHARES.values()]).max() < 2.5
    assert n_tokens > 1.5 * size(corpora[2]), "the third one is repeated"


@torch.no_grad()
def losses_of(decoder, windows):
    """Return the summed loss and number of targets of windows, each alone."""
    losses = []
    for ids, targets in windows:
        log_probs = decoder(torch.tensor([ids])).double().log_softmax(-1)[0]
        losses += [-log_probs[k, target].item() for k, target in enumerate(targets) if target is not None]
    return np.array([sum(losses), len(losses)])


def test_a_run_records_losses_and_tokens_of_each_corpus_and_resumes_bit_for_bit(place):
    run = train(place, "run", *words(place))
    experiment, settings = load_experiment(run / "config.yaml"), {"pack": 512, "look_ahead": 32, "streams": 2}
    folders = [shard_folder(part) for part in experiment.data.parts]
    packs = read_packs([cut(documents_of(folder), 96) for folder in folders], 0, **settings)
    counts = np.zeros(3, dtype=int)
    for k, line in enumerate(records(run)):
        batch = [next(packs), next(packs)]
        for corpus, windows in batch:
            counts[corpus] += size(windows)
        assert (line["corpus_tokens"], line["consumed_tokens"]) == (counts.tolist(), counts.sum())
        if k == 0:
            nats, n = sum(losses_of(decoder_builder(experiment)(0), windows) for _, windows in batch)
            assert line["loss"] == pytest.approx(nats / n, rel=1e-5)
    probe, decoder, means = lab.frame(run, last=True).iloc[0], open_model(run).decoder, []
    assert probe.corpus_tokens == counts.tolist()
    for folder in folders:
        held_out = cut(documents_of(folder, "held_out"), 96)
        first = next(read_packs([held_out] * 3, 0, **settings | {"streams": 1}))[1]  # all there is has one pack
        means.append(np.divide(*losses_of(decoder, first)))
    assert probe.held_out_losses == pytest.approx(means, rel=1e-5)
    assert probe.held_out_loss == pytest.approx(means @ np.array([0.7, 0.2, 0.1]), rel=1e-5)

    again = cut_after(run, place / "runs" / "again")
    train(place, "again", *words(place), resume=True)
    assert_same_run(run, again)
    assert records(again, without=SPEED) == records(run, without=SPEED)


@pytest.mark.slow
def test_two_ranks_train_on_the_same_packs(place, ranks):
    runs = [train(place, "one", *words(place)), place / "runs" / "two"]
    ranks.train("ddp2", place, "two", *words(place))
    one, two = [records(run) for run in runs]
    assert [line["corpus_tokens"] for line in one] == [line["corpus_tokens"] for line in two]
    np.testing.assert_allclose([line["loss"] for line in one], [line["loss"] for line in two], rtol=1e-5)


def test_shards_are_those_of_runs_on_the_corpora_alone_and_have_one_tokenizer(place, tmp_path, monkeypatch):
    config = mixture(place)
    prepare_missing(config)
    first, second, _ = config.parts
    assert first == replace(config, corpus=config.corpus.corpora[0])
    assert second.shard_name == replace(config, folder="elsewhere").parts[1].shard_name
    tokenizers = [(shard_folder(part) / "tokenizer.json").read_bytes() for part in config.parts]
    assert len({*tokenizers}) == 1
    file = TokenizerFile(path=str(shard_folder(first)), eos="<eos>")
    for part in replace(config, tokenizer=file).parts:
        assert part == replace(config, corpus=part.corpus, tokenizer=file)
    alone = replace(config, corpus=config.corpus.corpora[1])  # with a BPE of its own
    prepare(alone, progress=False)
    own = (shard_folder(alone) / "tokenizer.json").read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "tokenizer.json").write_bytes(own)  # of the same name, in the folder of shards
    changed = replace(config, folder=str(tmp_path / "shards"), tokenizer=replace(file, path="tokenizer.json"))
    for part, content in zip(changed.parts, [tokenizers[0], own, own], strict=True):
        Path("tokenizer.json").write_bytes(content)
        prepare(part, progress=False)
    with refused("{}: has another tokenizer than the first corpus; {}"):
        module_of(changed, micro_batch_tokens=64).digest()


def test_commands_take_a_mixture(place, capsys):
    options = [words(place)[-1], f"--data.folder={place / 'shards'}"]
    assert prepare_command([str(CONFIG), *options]) == 0
    counts = [line.partition(": ")[2].split()[0] for line in capsys.readouterr().out.splitlines()]
    experiment = load_experiment(CONFIG, parse_overrides(options))
    folders = [shard_folder(part) for part in experiment.data.parts]
    assert counts == [str(len(documents_of(folder))) for folder in folders]
    assert "shards" in estimate(experiment)
    assert needed_here(experiment).count("here") == 2
    assert verify([*map(str, folders)]) == 0
    assert demand([str(CONFIG), *options, "--tokens=2000", "-o", str(place / "out")]) == 0
    assert "tokens read" in capsys.readouterr().out


@pytest.mark.parametrize("names", ["aa 12", "a 1", "ab 1", "ab 10"], ids=["twice", "one", "no weight", "weight 0"])
def test_what_is_no_mixture_is_rejected_in_a_line(names):
    corpora, weights = (tuple(word) for word in names.split())
    with refused("{}: must {}; {}", ConfigError):
        Mixture(corpora=tuple(Text(path=name) for name in corpora), weights=tuple(map(float, weights)))
    inner = Mixture(corpora=(Stdlib(), Text(path="a")), weights=(1.0, 1.0))
    with refused("{}: must {}; {}", ConfigError):
        Mixture(corpora=(Stdlib(), inner), weights=(1.0, 1.0))
