import pytest
import torch

from lab.core.errors import DataError
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False)


@pytest.mark.parametrize(
    ("name", "std"),
    [
        # sqrt(2 / (5 * 160)) = 0.05; residual outputs 1 / (sqrt(fan_in) * 4 layers): fan_in 160 and 400
        ("head.weight", 0.05),
        ("blocks.1.attention.q.weight", 0.05),
        ("blocks.3.feed_forward.up.weight", 0.05),
        ("blocks.0.attention.out.weight", 0.25 / 160**0.5),
        ("blocks.3.feed_forward.out.weight", 0.0125),
        ("embedding.weight", 1.0),
    ],
)
def test_weights_are_drawn_with_the_published_spread(name, std):
    cfg = DecoderConfig(160, 4, 4, 4, 400, 300, tie_embeddings=False, embedding_std=1.0)
    weight = Decoder(cfg).state_dict()[name]
    relative_error = 5 / (2 * weight.numel()) ** 0.5  # five standard errors of a standard deviation
    assert float(weight.std()) == pytest.approx(std, rel=relative_error)
    assert abs(float(weight.mean())) < 5 * std / weight.numel() ** 0.5


def test_segments_that_do_not_describe_the_tokens_are_refused():
    model, tokens = Decoder(TINY), torch.zeros(1, 8, dtype=torch.int64)
    with pytest.raises(DataError, match="^cu_seqlens="):
        model(tokens, torch.tensor([0, 5, 9], dtype=torch.int32))
    with pytest.raises(DataError, match="must match tokens"):
        model(tokens, segments=Segments.from_lengths([4], 7))
    with pytest.raises(DataError, match="no cache"):
        model(tokens, segments=Segments.from_lengths([8], 8), cache=model.new_cache(1, 8))
