"""Small models in training, for tests that take steps by hand."""

from lab.config.sections import TrainConfig
from lab.model.attention.segments import ContextGroup
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder, make_optimizer
from lab.model.sharding import Sharding, build
from lab.positions import distance, frequencies
from lab.train.state import ModelRecipe, TrainState


def training_of(cfg, *, optim=OptimConfig(), seed=1, steps=9, batch_tokens, micro_batch_tokens, **options):
    """Build the training of a decoder, plain by default, over so many tokens a step and a pack.

    It is in float64 with `double`, and sharded over a `mesh`; no strategy wraps it.
    """
    sharding, mesh = options.pop("sharding", Sharding()), options.pop("mesh", None)
    context, double = options.pop("context_parallel", 1), options.pop("double", False)
    options = {"distance": distance("plain"), "backend": "sdpa", **options}
    options.setdefault("frequencies", frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta))
    sizes = {"tokens": steps * batch_tokens, "batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    train = TrainConfig(**sizes, context_parallel=context, devices=context)
    recipe = ModelRecipe(lambda seed: Decoder(cfg, seed=seed, **options), optim, train, seed, sharding)
    decoder = build(recipe.make, seed, None, mesh=mesh, sharding=sharding)
    decoder = decoder.double() if double else decoder
    return TrainState(recipe, decoder, decoder, make_optimizer(decoder, optim), ContextGroup.create(context))
