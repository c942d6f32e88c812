import dataclasses

import pytest
import torch

from lab.errors import DataError
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False)
PAPER = DecoderConfig(2048, 22, 32, 4, 5632, 128256, tie_embeddings=False)


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


def test_parameter_counts_of_the_paper_by_hand():
    # block: q and out 2 * 2048^2 = 8,388,608; k and v 2 * 2048 * 256 = 1,048,576; feed-forward 3 * 2048 * 5632 =
    # 34,603,008; norms 2 * 2048 = 4,096; sum 44,044,288, times 22 = 968,974,336. Last norm 2,048.
    # Embedding 128,256 * 2048 = 262,668,288, once when tied and twice when not.
    blocks, norm, embedding = 968_974_336, 2_048, 262_668_288
    assert PAPER.n_parameters(tie_embeddings=True) == blocks + norm + embedding == 1_231_644_672
    assert PAPER.n_parameters() == blocks + norm + 2 * embedding == 1_494_312_960
    assert dataclasses.replace(PAPER, tie_embeddings=True).n_parameters() == 1_231_644_672


def test_operations_per_token_by_hand():
    # 6 * (1,231,644,672 - 45 norms of 2048) = 6 * 1,231,552,512 = 7,389,315,072; attention
    # 12 * 22 * 2048 * (window / 2): 553,648,128 at 2048 and 1,107,296,256 at 4096
    assert PAPER.flops_per_token_causal(2048) == 7_389_315_072 + 553_648_128 == 7_942_963_200
    assert PAPER.flops_per_token_causal(4096) == 7_389_315_072 + 1_107_296_256 == 8_496_611_328
    assert PAPER.flops_per_token(1024.0) == 7_942_963_200
    # with hidden pairs attention is twice that
    assert PAPER.flops_per_token_full(2048) == 7_389_315_072 + 1_107_296_256 == PAPER.flops_per_token_causal(4096)
    assert PAPER.flops_per_token_full(4096) == 7_389_315_072 + 2_214_592_512 == 9_603_907_584


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
