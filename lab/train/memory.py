"""Estimate the peak memory of one process in a training step, in closed form.

Bytes that the forward pass of a block keeps for each token, with D d_model, W and K the widths of all query and
key-value heads, N and G their numbers, F d_ff, and m the copies of keys (one for each key map). A number takes s bytes
in the residual stream, c in products, and a in attention: c on a GPU, 4 on a CPU.

    tensor                      compiled            plain, GPU          plain, CPU
    inputs of both norms        (s + c) D           2 s D               16 D: in float32, before and after the scale
    their inverse scales        8                   8                   8
    their outputs               2 c D               2 c D, under autocast 5 c D on both
    QK-norm                     c (W + K) + 4 (N + G)                   8 (W + K) + 4 (N + G)
    queries                     a W; bands on a CPU keep them before rotation, c W
    keys and values             a (m + 1) K
    output, log-sum-exp         a W + 4 N
    output before its product   on a CPU c W if it is cast, or was made by plain sdpa; c W if ranks share packs
    feed-forward                3 c F               4 c F               4 c F

A compiled block computes silu(gate) again. A recomputed block keeps its input, s D, and has the table's tensors while
its own backward pass runs. Under fsdp s = c. Under autocast s = 4 and c = 2, and casts of the weights are kept; a
recomputed block has its casts only while its own backward pass runs.

Not included: ids, the caching allocator's rounding and fragmentation, and workspaces inside kernels. The largest is the
float32 gradient of q in flash attention's backward pass, which exists after a block's feed-forward tensors are freed.
"""

from dataclasses import dataclass
from functools import partial

import torch

from lab.config import Experiment
from lab.loading import decoder_builder
from lab.model.config import DecoderConfig
from lab.model.loss import chunk_tokens
from lab.positions import Distance


@dataclass(frozen=True)
class Memory:
    """Bytes of one process.

    `kept` are those that the forward pass keeps for the backward pass, and `peak` the maximum over both passes, by
    category.
    """

    kept: int
    peak: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.peak.values())


def count_kept(
    cfg: DecoderConfig, distance: Distance, *, on_gpu: bool, compiled: bool, stream: int, compute: int, shares: bool
) -> int:
    """Count the bytes that a block keeps of a token by the table of the module: `stream` is its s, `compute` its c.

    `shares` tells whether ranks share packs.
    """
    attention = compute if on_gpu else 4
    # torch composes the norm on a CPU of operators in float32; a GPU has a kernel, which keeps its input alone.
    inputs, normed = 16, 8
    if compiled:  # the second norm's input is the first one's and the output of attention's projection
        inputs, normed = stream + compute, compute
    elif on_gpu:
        inputs, normed = 2 * stream, compute
    n_outputs = 2
    if stream > compute and not compiled:  # each of five products casts its own
        n_outputs = 5
    kept = (inputs + n_outputs * compute) * cfg.d_model + 8
    if cfg.qkv == "norm":
        kept += normed * (cfg.width + cfg.kv_width) + 4 * (cfg.n_heads + cfg.n_kv_heads)
    kept += (attention if distance.is_plain else compute) * cfg.width
    n_keys = len({band.k_map for band in distance.bands})
    kept += attention * ((n_keys + 1) * cfg.kv_width + cfg.width) + 4 * cfg.n_heads
    is_copied = attention > compute or (distance.is_plain and not on_gpu and not compiled)
    return kept + compute * ((is_copied + shares) * cfg.width + (4 - compiled) * cfg.d_ff)


def measure_memory(experiment: Experiment) -> Memory:
    """Estimate the memory of each process of a run, in a step after the first.

    The peak is in the loss, whose chunk of logits is the largest tensor, in the backward pass of the last block, or in
    that of the embedding, when all gradients exist.
    """
    train, cfg = experiment.train, experiment.model
    on_gpu = train.accelerator != "cpu"
    strategy = train.resolved_strategy(on_gpu)
    compute = 2 if train.bf16 else 4
    stream = compute if strategy == "fsdp" else 4
    with torch.device("meta"):
        decoder = decoder_builder(experiment)(None)
    distances = [decoder.distance] * cfg.n_layers
    if cfg.layers is not None:
        distances = [cfg.layers.methods(kind, decoder.frequencies, decoder.distance)[1] for kind in cfg.kinds]
    count = partial(
        count_kept,
        cfg,
        on_gpu=on_gpu,
        compiled=train.compile is True or (train.compile == "auto" and on_gpu),
        stream=stream,
        compute=compute,
        shares=train.context_parallel > 1,
    )
    blocks = [*map(count, distances)]
    of_blocks, working = sum(blocks) + 4 * cfg.head_dim, stream * cfg.d_model  # with cos and sin
    if train.recompute:
        of_blocks, working = len(blocks) * working, max(blocks)

    n_tokens = train.micro_batch_tokens // train.context_parallel
    n_head = cfg.vocab_size * cfg.d_model
    hidden = n_tokens * stream * cfg.d_model
    # The last norm keeps its input, and the loss the gradients of hidden states and head, the latter in float32.
    kept = n_tokens * (of_blocks + (stream if on_gpu else 8) * cfg.d_model + 4) + hidden + 4 * n_head
    logits = min(chunk_tokens(cfg.vocab_size), n_tokens) * cfg.vocab_size * compute
    if on_gpu:  # their gradient does not replace them
        logits *= 2
    casts = 0
    if stream > compute:  # autocast keeps casts of the weights
        casts = compute * (cfg.n_matrix_parameters - n_head)
        logits += compute * n_head
        if train.recompute:
            casts //= cfg.n_layers
        else:
            kept += casts

    # FSDP2 pads the rows of every parameter to a multiple of the ranks.
    degree = train.sharded_over if strategy == "fsdp" else 1
    shapes = [parameter.shape for parameter in decoder.parameters()]
    n_own = sum(-(-shape[0] // degree) * shape[1:].numel() for shape in shapes)
    accumulates = train.accumulation > 1
    accumulated = 4 * n_own * (accumulates or strategy == "ddp")  # DDP's buckets are the gradients, and always there
    in_loss = in_block = in_embedding = 0  # bytes that FSDP2 gathers and reduces
    if strategy == "fsdp":
        n_block = sum(parameter.numel() for parameter in decoder.blocks[0].parameters())
        reduced = 4 * max(n_block, n_head)  # the float32 input of a reduce-scatter, until that of the next one
        in_loss = compute * n_head
        in_block = 2 * compute * n_block + reduced  # with the block that is fetched ahead
        in_embedding = in_loss + reduced
        if train.keeps_whole(cfg.n_parameters()):  # and full gradients, which accumulate in float32
            accumulated = 0
            in_loss = in_block = (compute + 4 * accumulates) * cfg.n_parameters()
    gradients, gathered, activations = max(
        (accumulated, in_loss, kept + hidden + logits),
        # with the gradients of gate and up
        (
            accumulated or 4 * n_head // degree,
            in_block,
            n_tokens * (of_blocks + working + 2 * compute * cfg.d_ff) + casts,
        ),
        (4 * n_own, in_embedding, hidden + 4 * n_head * accumulates),
        key=sum,
    )
    return Memory(
        kept,
        {
            "parameters": 4 * n_own,
            "gradients": gradients,
            "optimizer": 8 * n_own + 4 * len(shapes),  # two moments, and the step of each parameter
            "gathered": gathered,
            "activations": activations,
        },
    )
