"""A reference's stored losses and contexts against a pass for each target, and runs that read them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lab
from eval.demand import main
from eval.engine.sliding import least_contexts
from lab.data.beside import path_of
from lab.data.module import PackedData
from lab.errors import ConfigError, DataError
from lab.evidence.base import Gain
from lab.loading import open_model
from tests.eval.commands import runner
from tests.fits import CONFIG, UNPROBED, load, settings_of, train
from tests.refusals import refused

FAR = ("--weights.by=evidence", "--weights.keep=[[0,9]]")
SHORT = ("--train.tokens=10240",)  # 10 steps of 2 packs
run = runner(main, "score")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train the reference, refuse a control by losses before there are any, store them, and train both arms."""
    place = tmp_path_factory.mktemp("reference")
    train(place, "reference", *UNPROBED)
    with refused("weights.control=loss: is not stored in ", error=DataError):
        train(place, "control", *UNPROBED, *FAR, "--weights.control=loss")
    assert not (place / "runs" / "control").exists()
    words = [f"--data.folder={place / 'shards'}", f"--score={place / 'runs' / 'reference'}", "--tokens=2000", "--json"]
    with refused("evidence.method=gain: is not stored in ", error=DataError):
        train(place, "gain", "--evidence.method=gain")
    assert main([str(CONFIG), *words, "--evidence=gain"]) == 0
    train(place, "gain", "--evidence.method=gain", *UNPROBED, *SHORT)
    train(place, "control", *UNPROBED, *SHORT, *FAR, "--weights.control=loss")
    train(place, "far", *UNPROBED, *SHORT, *FAR)
    return place


def data_of(place, *words):
    data = PackedData(load(*settings_of(place, "any"), *UNPROBED, *words))
    data.setup("fit")
    return data


def test_stored_losses_are_those_of_each_piece(place):
    data = data_of(place)
    decoder = open_model(place / "runs" / "reference").decoder
    (shard,) = data.store.shards
    stored = np.load(path_of(shard, "loss"))
    long = int(np.argmax(np.diff(shard.ends) > 2 * 96)) + 1  # of several windows
    for document in (0, 1, long):
        part = shard.part(document)
        tokens = torch.from_numpy(shard.tokens[part].astype(np.int64))
        assert stored[part.start] == 0
        for start in range(0, len(tokens) - 1, 96):
            stop = min(start + 96, len(tokens) - 1)
            with torch.no_grad():
                logits = decoder(tokens[None, start:stop])[0].double()
            expected = torch.nn.functional.cross_entropy(logits, tokens[start + 1 : stop + 1], reduction="none")
            own = stored[part][start + 1 : stop + 1].astype(np.float64)
            np.testing.assert_allclose(own, expected, rtol=2e-3, atol=1e-3)  # float16


def test_the_control_loses_targets_of_the_same_losses(place):
    far, control = (lab.open_run(place / "runs" / name).counts() for name in ("far", "control"))
    assert far.g_unweighted.tolist() == control.g_unweighted.tolist()
    assert far.targets == control.targets
    assert control.g[10:].sum() > 0.3 * control.g_unweighted[10:].sum()
    data = data_of(place, *FAR, "--weights.control=loss")
    plain = data_of(place, *FAR)
    means, random = [], []
    for _, pack, other in zip(range(40), data.stream(0), plain.stream(0), strict=False):
        scored = pack.targets >= 0
        means.append([pack.stored["loss"][scored & ~each.weights].mean() for each in (pack, other)])
        random.append(pack.stored["loss"][scored].mean())
    means = np.mean(means, axis=0)
    assert abs(means[0] - means[1]) < 0.1 * abs(means[1] - np.mean(random))


def test_another_reference_is_refused(place, capsys):
    words = f"{CONFIG} --data.folder={place / 'shards'} --score={place / 'runs' / 'far'}"
    status, _, err = run(words, capsys)
    assert status == 2
    (folder,) = (place / "shards").iterdir()
    assert err.startswith(f"--score={place / 'runs' / 'far'}: {folder / '.reference.json'} names another model")
    assert json.loads((folder / ".reference.json").read_text())["model"] == "reference"


def copying(tokens, targets):
    """Score as a model that knows a target where its token stands in the context; unscored ones below 0."""
    seen = torch.stack([(tokens[:, : k + 1] == targets[:, k, None]).any(1) for k in range(tokens.shape[1])], 1)
    return torch.where(targets < 0, 0.0, torch.where(seen, 0.5, 3.0)).double()


def test_the_least_context_worked_by_hand():
    # in the window of 32: 1 is repeated 3 back (4 tokens suffice), 2 is 6 back (8 do), 3 is 11 back (16 do)
    document = [4, 50, 1, 51, 52, 1, 3, 53, 54, 55, 2, 56, 57, 58, 59, 60, 2, 3, 61, 62, 4]
    # 4 is 20 back and needs all 20 tokens before it
    second = [*range(70, 102), 5, 70, 6, 7, 8, 9, 10, 5]  # 70 is 33 back, in another piece; the last 5 is 7 back
    tokens = np.array([*document, *second], dtype=np.uint16)
    shard = SimpleNamespace(tokens=tokens, ends=np.array([len(document), len(tokens)]))
    found = least_contexts(SimpleNamespace(losses=copying), shard, 32)
    expected = np.zeros(len(tokens))
    expected[[16, 17, 20, len(tokens) - 1]] = [8, 16, 20, 7]  # of the last, 7 tokens of its piece precede it
    assert found.tolist() == expected.tolist()


def test_stored_contexts_are_the_least_by_one_pass_for_each_target(place):
    data = data_of(place)
    decoder = open_model(place / "runs" / "reference").decoder
    (shard,) = data.store.shards
    stored = np.load(path_of(shard, "gain-96"))
    long = int(np.argmax(np.diff(shard.ends) > 96)) + 1  # of two pieces
    different, close = set(), 0
    for document in (0, long):
        tokens = torch.from_numpy(shard.tokens[shard.part(document)].astype(np.int64))
        own = stored[shard.part(document)]
        assert own[0] == 0
        for place_ in range(1, len(tokens)):
            whole = (place_ - 1) % 96 + 1
            losses = {}
            for context in (4, 8, 16, 32, 64, 96):
                skipped = -(-max(0, whole - context) // (context // 4)) * (context // 4) if context < 96 else 0
                with torch.no_grad():
                    logits = decoder(tokens[None, place_ - whole + skipped : place_])[0, -1].double()
                losses[context] = torch.nn.functional.cross_entropy(logits, tokens[place_]).item()
            over = [losses[context] - losses[96] - 0.1 for context in losses]
            if min(map(abs, over)) < 1e-3:
                close += 1
                continue
            least = next(context for context, more in zip(losses, over, strict=True) if more <= 0)
            assert own[place_] == (0 if least == 4 else min(least, whole))
            different.add(least)
    assert different > {4, 8}
    assert close < 5


def test_a_run_counts_the_stored_contexts(place):
    run = lab.open_run(place / "runs" / "gain")
    data = data_of(place, "--evidence.method=gain")
    (shard,) = data.store.shards
    stored = np.load(path_of(shard, "gain-96"))
    expected = np.zeros(96)
    for stream in range(data.n_streams):
        for _, pack in zip(range(20 // data.n_streams), data.stream(stream), strict=False):
            found = np.minimum(pack.distances[pack.targets >= 0], 95)  # 96, a whole window, counts as 95
            expected += np.bincount(found, minlength=96)
    assert run.g().tolist() == [0, *expected[1:]]
    assert set(np.flatnonzero(run.g())) <= {*stored, 95}
    assert run.g()[95] > 0
    assert run.g()[8:].sum() > 100


def test_other_tokens_than_those_of_training_have_none():
    row = np.zeros(5, dtype=np.int64)
    with refused("evidence.method=gain: is stored for training tokens alone", error=ConfigError):
        Gain().distances(row, row, [5])


def test_contexts_in_another_window_are_refused(place):
    data = PackedData(load(*settings_of(place, "any"), *UNPROBED, "--evidence.method=gain", "--data.window=64"))
    with refused("evidence.method=gain: is not stored in ", error=DataError):
        data.prepare_data()
