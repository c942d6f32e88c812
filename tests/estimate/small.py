from lab.config import Experiment, RunConfig, TrainConfig
from lab.data.config import DataConfig, TokenizerFile
from lab.masks import Causal
from lab.model.config import DecoderConfig, OptimConfig

TRAIN = {"tokens": 768, "batch_tokens": 768, "micro_batch_tokens": 128, "precision": "fp32"}


def small(*, window=64, tied=False, mode="natural", mask=Causal(), **train):
    """Two blocks, D 8, N 2, K 1, H 4, F 12, V 20."""
    return Experiment(
        run=RunConfig(name="small"),
        model=DecoderConfig(8, 2, 2, 1, 12, 20, tied),
        data=DataConfig(window=window, mode=mode, tokenizer=TokenizerFile(path="nowhere", eos="<eos>")),
        mask=mask,
        optim=OptimConfig(warmup_steps=0),
        train=TrainConfig(**TRAIN | train),
    )
