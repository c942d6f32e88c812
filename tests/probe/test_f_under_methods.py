"""A probe during training shows f at the position that the method puts a distance at."""

import torch

from lab.counts import PositionCounts
from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import build_distance_probe
from lab.probe.effective_length import NeedleProbe
from lab.probe.measuring import Measuring, ModelInTraining
from lab.probe.probe import Worker

SIZES = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "d_ff": 8, "tie_embeddings": False}
HAYSTACK = " ".join(f"bake{k % 7}" for k in range(2000))


def test_f_of_a_distance_is_that_of_its_position(bytewise):
    config = ProbeConfig(digits=3, tests=1, step=512, max_length=512, distance_tests=1, distances=(120, 190))
    probe = NeedleProbe(config, bytewise, HAYSTACK, window=320, stop_id=None)
    decoder = Decoder(DecoderConfig(**SIZES, vocab_size=bytewise.get_vocab_size()), seed=0)
    decoder.distance = distance("string", shift=100, window=10)  # 120 is at 20 + 10, 190 at 90 + 10
    counts = PositionCounts(320)
    counts.add_segments([320])  # f(i) = 320 - i
    model = ModelInTraining(decoder, None, torch.no_grad)
    lines, _ = Measuring(probe, build_distance_probe(probe)).run(model, Worker(), {}, counts, lambda _: True)
    assert {line["distance"]: line["f"] for line in lines if "distance" in line} == {120: 290, 190: 220}
