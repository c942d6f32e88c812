import pytest
import torch

from lab.errors import DataError
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False)


def tokens_of(seed, *shape, vocab=TINY.vocab_size):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def decoder(cfg=TINY, seed=0, std=0.3, **options):
    """Build a float64 decoder whose every weight, norms included, matters to the logits."""
    model = Decoder(cfg, seed=seed, **options).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            mean = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.empty(parameter.shape).normal_(mean, std, generator=generator))
    return model


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
    model, tokens = decoder(), tokens_of(12, 1, 8)
    with pytest.raises(DataError, match="^cu_seqlens="):
        model(tokens, torch.tensor([0, 5, 9], dtype=torch.int32))
    with pytest.raises(DataError, match="must match tokens"):
        model(tokens, segments=Segments.from_lengths([4], 7))
    with pytest.raises(DataError, match="no cache"):
        model(tokens, segments=Segments.from_lengths([8], 8), cache=model.new_cache(1, 8))
