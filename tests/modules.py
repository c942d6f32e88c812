"""LightningModules of small models, for tests that take steps by hand."""

from lab.config.sections import TrainConfig
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder
from lab.model.sharding import Sharding
from lab.positions import distance, frequencies
from lab.train.step import Training


def training_of(cfg, *, optim=OptimConfig(), seed=1, steps=9, batch_tokens, micro_batch_tokens, **options):
    """Build the training of a decoder, plain by default, over so many tokens a step and a pack."""
    sharding, start = options.pop("sharding", Sharding()), options.pop("start", None)
    context = options.pop("context_parallel", 1)
    options = {"distance": distance("plain"), "backend": "sdpa", **options}
    options.setdefault("frequencies", frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta))
    train = TrainConfig(
        tokens=steps * batch_tokens,
        batch_tokens=batch_tokens,
        micro_batch_tokens=micro_batch_tokens,
        context_parallel=context,
        devices=context,
    )
    make = lambda seed: Decoder(cfg, seed=seed, **options)  # noqa: E731
    return Training(make, optim, train, seed=seed, sharding=sharding, start=start)
