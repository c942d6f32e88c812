"""Documents and positions of the tokens that a model's forward received.

What a model attends is stated by its arguments, by the names that transformers 5 uses:

    attention_mask  (B, T) of 0 and 1: padding, on either side; (B, 1, T, T): which keys each query sees
    position_ids    (B, T): a row without a mask begins a new document where ids do not go on by 1
    cu_seq_lens_q   (documents + 1,): the boundaries of the documents of a packed row; also cu_seqlens

    position_ids  0 1 2 0 1 | attention_mask  0 1 1 1 1 | cu_seq_lens_q  0 3 5
    documents     0 0 0 1 1 | documents      -1 0 0 0 0 | documents      0 0 0 1 1

Arguments from which two layouts follow are rejected: nothing is guessed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.errors import DataError
from lab.core.types import IGNORE, IntArray

PADDING = -1  # document of a token that is not attended


@dataclass
class Received:
    """What one forward received: the arguments that state its layout, and its targets.

    Shapes: tokens (B, T); attention_mask (B, T) or None; position_ids (B, T) or (1, T) or None; boundaries
        (documents + 1,) or None; first_keys (B, T), the first key that each query sees, -1 for none, or None;
        is_causal, whether each query sees all keys from its first key to itself and no other, a bool, or None.
    `has_cache` means that the model keeps keys for later tokens: then transformers attends across restarts of ids.
    `targets` (B, T) are labels, shifted already if `is_shifted`. `ready` is recorded after the copies to the host.
    """

    tokens: Tensor
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    boundaries: Tensor | None = None
    first_keys: Tensor | None = None
    is_causal: Tensor | None = None
    has_cache: bool = False
    targets: Tensor | None = None
    is_shifted: bool = False
    ready: torch.cuda.Event | None = None


def read_arguments(tokens: Any, arguments: dict[str, Any], config: Any) -> Received:
    """Collect the arguments that state the layout; `config` is that of a model of transformers, or None.

    Raises: DataError for arguments of other types or shapes.
    """
    if not isinstance(tokens, Tensor) or tokens.dim() not in (1, 2):
        raise DataError("input: must be token ids (B, T); name their argument by input=")
    received = Received(torch.atleast_2d(tokens))
    mask = arguments.get("attention_mask")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dim() not in (2, 4):
            raise DataError(
                f"attention_mask={type(mask).__name__}: must be a tensor (B, T) or (B, 1, T, T) to be counted"
            )
        if mask.dim() == 2:
            received.attention_mask = mask
        else:
            # Reduced on its device, because T^2 elements a row would be slow to copy.
            received.first_keys, received.is_causal = reduce_mask(mask)
    positions = arguments.get("position_ids")
    if positions is not None:
        if positions.dim() > 2:
            raise DataError(
                f"position_ids={tuple(positions.shape)}: must be (B, T); several ids a token are not counted"
            )
        received.position_ids = torch.atleast_2d(positions)
    use_cache = arguments.get("use_cache")
    if use_cache is None:
        use_cache = getattr(config, "use_cache", False)
    # FlashAttention divides rows at restarts of ids whether keys are kept or not.
    received.has_cache = bool(use_cache) and "flash" not in str(getattr(config, "_attn_implementation", ""))
    received.boundaries = arguments.get("cu_seq_lens_q", arguments.get("cu_seqlens"))
    return received


def reduce_mask(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first key that each query sees, and whether it sees all keys from there to itself and no other.

    Shapes: (B, 1, T, T), bool or added to the logits -> int64 (B, T), bool ().
    Example:
        >>> first, is_causal = reduce_mask(torch.tensor([[[[True, False, False], [True, True, False], [False] * 3]]]))
        >>> first.tolist(), is_causal.item()
        ([[0, 0, -1]], True)
    """
    if mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        raise DataError(f"attention_mask={tuple(mask.shape)}: must be (B, 1, T, T), one mask for all heads")
    visible = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
    first = torch.where(visible.any(-1), visible.to(torch.int8).argmax(-1), PADDING)
    index = torch.arange(mask.shape[-1], device=mask.device)
    expected = (index >= first[..., None]) & (index <= index[:, None]) & (first >= 0)[..., None]
    # Documents are blocks only if the first key of a query's first key is that key itself.
    of_first = torch.gather(first, 1, first.clamp(min=0))
    return first, (visible == expected).all() & ((of_first == first) | (first < 0)).all()


def resolve_layout(received: Received) -> tuple[IntArray, IntArray]:
    """Return each token's position and its document, PADDING for tokens that are not attended.

    Shapes: int64 (B, T) both.
    Raises: DataError for arguments that leave the layout open.
    """
    shape = tuple(received.tokens.shape)
    documents: IntArray = np.zeros(shape, dtype=np.int64)
    is_attended = np.ones(shape, dtype=np.bool_)
    # transformers attends across restarts of position_ids if it gets a mask.
    has_documents = received.attention_mask is not None or received.first_keys is not None
    if received.attention_mask is not None:
        mask = received.attention_mask.numpy()
        if mask.shape != shape or not np.isin(mask, (0, 1)).all():
            raise DataError(f"attention_mask={mask.shape}: must hold 0 and 1 for the {shape} tokens; pass no cache")
        is_attended = mask == 1
    if received.first_keys is not None:
        if not received.is_causal:
            raise DataError("attention_mask: is not causal within blocks of a row, so that distances are not known")
        # Tokens of one block see the same first key, which numbers the block, and -1 is PADDING.
        documents = received.first_keys.numpy()
    if received.boundaries is not None:
        ends = received.boundaries.numpy()
        if shape[0] != 1 or ends[0] != 0 or ends[-1] != shape[1] or has_documents:
            raise DataError(
                f"cu_seq_lens_q={ends.tolist()[:9]}: must be the boundaries of one row of {shape[1]} tokens"
            )
        documents = np.repeat(np.arange(len(ends) - 1), np.diff(ends))[None]
        has_documents = True
    ids = received.position_ids
    positions = np.broadcast_to(np.arange(shape[1]) if ids is None else ids.numpy(), shape)
    if not has_documents:
        steps = np.diff(positions)
        if (steps > 1).any():
            raise DataError(
                "position_ids: go up by more than 1 in a row without a mask, where models differ in what they attend; "
                "pass attention_mask or cu_seq_lens_q"
            )
        if received.has_cache and (steps != 1).any():
            raise DataError(
                "position_ids: start again within a row, which transformers attends as one document if it keeps a "
                "cache; set model.config.use_cache=False"
            )
        documents[:, 1:] = np.cumsum(steps != 1, axis=1)
    return positions, np.where(is_attended, documents, PADDING)


def resolve_targets(received: Received, documents: IntArray) -> IntArray:
    """Return the target of each token: the labels, or without any the next token of its document.

    Shapes: int64 (B, T), a copy.
    Raises: DataError for labels of another shape.
    """
    tokens = received.tokens.numpy()
    if received.targets is None:
        return shift(tokens, documents)
    targets = received.targets.numpy()
    if targets.shape != tokens.shape:
        raise DataError(f"labels={targets.shape}: must be shaped as the tokens, {tokens.shape}, to be counted for g")
    return targets.copy() if received.is_shifted else shift(targets)


def find_runs(positions: IntArray, documents: IntArray) -> tuple[IntArray, bool]:
    """Return the lengths of the documents of all rows, and whether ids go on by 1 within each.

    Shapes: int64 (B, T) both -> int64 (documents,).
    Example:
        >>> find_runs(np.array([[0, 1, 0, 1], [0, 1, 2, 3]]), np.array([[0, 0, 1, 1], [0, 0, 0, 0]]))
        (array([2, 2, 4]), True)
    """
    is_attended = documents != PADDING
    rows = np.arange(len(documents))[:, None]
    # A document's number counts within its row, so that rows are numbered apart.
    runs = (rows * (documents.max() + 1) + documents)[is_attended]
    lengths = np.diff(np.flatnonzero(np.diff(runs, prepend=-1, append=-1)))
    return lengths, bool((np.diff(positions[is_attended]) == 1)[np.diff(runs) == 0].all())


def copy_to_host(received: Received) -> None:
    """Replace tensors by copies in memory of their own on the host, from a GPU without a wait."""
    for name, value in vars(received).items():
        if not isinstance(value, Tensor) or value.is_meta:
            continue
        # A copy from a GPU without a wait needs pinned memory. One on the CPU must not share the batch, which changes.
        pinned = value.device.type == "cuda"
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
        setattr(received, name, copy.copy_(value.detach(), non_blocking=True))


def shift(tokens: IntArray, documents: IntArray | None = None) -> IntArray:
    """Return the next token of each, IGNORE at the end of a row or document.

    Example:
        >>> shift(np.array([[5, 6, 7]]), np.array([[0, 0, 1]])).tolist()
        [[6, -100, -100]]
    """
    targets = np.full_like(tokens, IGNORE)
    targets[:, :-1] = tokens[:, 1:]
    if documents is not None:
        targets[:, :-1][documents[:, 1:] != documents[:, :-1]] = IGNORE
    return targets
