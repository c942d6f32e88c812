"""What a run was made of: its packs, taken again from its own config, their pairs of tokens, and its weights."""

import itertools

import numpy as np

from lab.config import load_experiment
from lab.data.module import PackedData
from lab.loading import read_weights


def replayed(run):
    """Take the packs of all steps again; return the experiment, and the packs by step."""
    experiment = load_experiment(run / "config.yaml")
    train = experiment.train
    data = PackedData(experiment, run / "impact.json" if experiment.reads_token_types else None)
    data.setup()
    streams = [list(itertools.islice(data.stream(j), train.steps)) for j in range(train.n_packs)]
    return experiment, list(zip(*streams, strict=True))


def pairs_of(pack):
    """List the distance of every pair of the dense mask of a pack."""
    n = sum(pack.lengths)
    run_of = np.repeat(np.arange(len(pack.lengths)), pack.lengths)
    ids = pack.position_ids
    if ids is None:
        ids = np.concatenate([np.arange(length) for length in pack.lengths])
    places = np.arange(n)
    sees = (run_of[:, None] == run_of) & (places[:, None] >= places)
    if pack.anchors is not None:
        sees |= np.array(pack.anchors)[run_of][:, None] == places
    return (ids[:n, None] - ids[:n])[sees]


def assert_same_weights(run, other):
    ours, theirs = read_weights(run), read_weights(other)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
