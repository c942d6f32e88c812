"""A reference's stored losses against one pass per piece, and a run that matches its control by them."""

import json

import numpy as np
import pytest
import torch

import lab
from eval.demand import main
from lab.data.labels import path_of
from lab.data.module import PackedData
from lab.errors import DataError
from lab.loading import open_model
from tests.eval.commands import runner
from tests.fits import CONFIG, UNPROBED, load, settings_of, train
from tests.refusals import refused

FAR = ("--weights.by=evidence", "--weights.keep=[[0,9]]")
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
    assert main([str(CONFIG), *words]) == 0
    train(place, "control", *UNPROBED, *FAR, "--weights.control=loss")
    train(place, "far", *UNPROBED, *FAR)
    return place


def data_of(place, *words):
    data = PackedData(load(*settings_of(place, "control"), *UNPROBED, *words))
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
