"""Documents and positions of the tokens that a model's forward received.

What a model attends is stated by its arguments, by the names that transformers 5 uses, or by those that the user names:

    attention_mask  (B, T) of 0 and 1: padding, on either side; (B, 1, T, T) or a BlockMask: which keys each query sees
    position_ids    (B, T): a row without a mask begins a new document where ids do not go on by 1
    cu_seq_lens_q   (documents + 1,): the boundaries of the documents of a packed row; also cu_seqlens

    position_ids  0 1 2 0 1 | attention_mask  0 1 1 1 1 | cu_seq_lens_q  0 3 5
    documents     0 0 0 1 1 | documents      -1 0 0 0 0 | documents      0 0 0 1 1

Arguments from which two layouts follow, or whose meaning is not known, are rejected: nothing is guessed. Tensors stay
on the device of the tokens, which nothing waits for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from lab.core.errors import ConfigError, DataError
from lab.core.types import IGNORE, IntArray

Names = Mapping[str, tuple[str, ...]]
PADDING = -1  # document of a token that is not attended


@dataclass
class Received:
    """What one forward received: tokens, the target of each, and their positions and documents, all int64 (B, T).

    The layout is known only if `is_known`, bool (); else `error` says why not. `has_pairs` means that a mask states
    which keys each query sees, `divides` that tokens do not see other documents of their row. Tokens and targets are
    None if g is not counted. `ready` is recorded after the copies to the host.
    """

    tokens: Tensor | None
    targets: Tensor | None
    positions: Tensor
    documents: Tensor
    is_known: Tensor
    error: str
    has_pairs: bool
    divides: bool = True
    ready: torch.cuda.Event | None = None


def find_argument(role: str, arguments: Mapping[str, object], names: Names) -> tuple[str, Any]:
    """Return the name and the value of the first argument of a role that is passed; its value is None without any."""
    for name in names[role]:
        value = arguments.get(name)
        if value is not None and not isinstance(value, str):  # such as "causal", for a mask that a model makes itself
            return name, value
    return names[role][0], None


def read_layout(input: str, arguments: Mapping[str, object], names: Names) -> Received:
    """Find the layout of a forward, and its targets.

    Raises: ConfigError for an argument that may state a layout and has no known name; DataError for other types.
    """
    ids = arguments.get(input)
    if not isinstance(ids, Tensor) or ids.dim() not in (1, 2) or ids.is_floating_point():
        raise DataError(f"input={input}: must be token ids (B, T); name their argument by input=")
    check_names(ids, arguments, {input, "cu_seq_lens_k", "token_type_ids", *chain(*names.values())})
    tokens = torch.atleast_2d(ids)
    size = tokens.shape[1]
    index = torch.arange(size, device=tokens.device)
    name, positions = find_argument("positions", arguments, names)
    if positions is None:
        positions = index
    if positions.dim() > 2:
        raise DataError(f"{name}={tuple(positions.shape)}: must be (B, T); several ids a token are not counted")
    positions = positions.expand(tokens.shape)
    name, mask = find_argument("mask", arguments, names)
    boundaries_name, ends = find_argument("boundaries", arguments, names)
    if ends is not None:
        ends = ends.to(tokens.device)
    if ends is not None and (mask is not None or len(tokens) > 1):
        rule = f"must be the boundaries of one row of {size} tokens, without a mask"
        raise DataError(f"{boundaries_name}={tuple(ends.shape)}: {rule}")
    # transformers attends across restarts of position_ids if it gets a mask.
    error = f"{name}: must be 0 and 1 for tokens, or causal within blocks of a row; otherwise distances are not known"
    has_pairs = False
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        # Attended tokens see the row from its first key on, which padding hides.
        documents = torch.atleast_2d(mask).long() - 1
        is_known = ((mask == 0) | (mask == 1)).all()
    elif isinstance(mask, BlockMask) or (isinstance(mask, Tensor) and mask.shape[-2:] == 2 * ids.shape[-1:]):
        if isinstance(mask, Tensor) and mask.dim() < 4:  # (T, T) or (B, T, T)
            mask = mask.reshape(-1, 1, *mask.shape[-2:])
        # Tokens of one block see the same first key, which numbers the block.
        documents, is_known = reduce_mask(mask, tokens)
        has_pairs = True
    elif mask is not None:
        shape = tuple(getattr(mask, "shape", ""))
        rule = "must be a tensor (B, T) or (B, 1, T, T), or a BlockMask, to be counted; pass no cache"
        raise DataError(f"{name}={type(mask).__name__}{shape}: {rule}")
    elif ends is not None:
        documents = torch.bucketize(index.to(ends.dtype), ends[1:], right=True)[None]
        is_known = (ends[0] == 0) & (ends[-1] == size) & (ends.diff() >= 0).all()
        error = f"{boundaries_name}: must rise from 0 to {size}, the tokens of the row"
    else:
        steps = positions.diff()
        documents = pad((steps != 1).cumsum(-1), (1, 0))
        is_known = (steps <= 1).all()
        error = (
            "position_ids: go up by more than 1 in a row without a mask, where models differ in what they attend; "
            "pass attention_mask or cu_seq_lens_q"
        )
    return Received(
        tokens, find_targets(arguments, names, tokens, documents), positions, documents, is_known, error, has_pairs
    )


def find_targets(arguments: Mapping[str, object], names: Names, tokens: Tensor, documents: Tensor) -> Tensor:
    """Return the target of each token: the labels, or without any the next token of its document.

    Shapes: (B, T) -> int64 (B, T), IGNORE where there is none.
    Raises: DataError for labels of another shape.
    Example:
        >>> find_targets({}, {"targets": ("labels",)}, torch.tensor([[5, 6, 7]]), torch.tensor([[0, 0, 1]])).tolist()
        [[6, -100, -100]]
    """
    name, labels = find_argument("targets", arguments, names)
    if labels is None:
        following = pad(tokens.long()[:, 1:], (0, 1), value=IGNORE)
        return following.masked_fill(pad(documents.diff() != 0, (0, 1)), IGNORE)
    labels = torch.atleast_2d(labels)
    if labels.shape != tokens.shape:
        rule = f"must be shaped as the tokens, {tuple(tokens.shape)}, to be counted for g"
        raise DataError(f"{name}={tuple(labels.shape)}: {rule}")
    return pad(labels[:, 1:], (0, 1), value=IGNORE) if name == "labels" else labels


def check_names(tokens: Tensor, arguments: Mapping[str, object], known: set[str]) -> None:
    """Reject arguments that may state a layout under a name that is not known.

    Raises: ConfigError.
    """
    for name, value in arguments.items():
        if name in known:
            continue
        for part in value.values() if isinstance(value, dict) else (value,):
            if isinstance(part, Tensor):
                is_layout = part.shape == tokens.shape and not part.is_floating_point()
                is_layout |= part.shape[-2:] == 2 * tokens.shape[-1:]
            else:  # any class may be a mask, or a cache of other keys
                is_layout = type(part).__module__ not in ("builtins", "torch") and not callable(part)
            if is_layout:
                raise ConfigError(
                    f"{name}={type(part).__name__}: may state what tokens see, and has no known name; name it by "
                    "positions=, targets=, boundaries= or mask=, or pass it no more"
                )


def reduce_mask(mask: Tensor | BlockMask, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first key that each query sees, and whether it sees all keys from there to itself and no other.

    Shapes: (B or 1, 1, T, T), a BlockMask, bool, or added to the logits; tokens (B, T) -> int64 (B, T), bool ().
    Example:
        >>> mask = torch.tensor([[[[True, False, False], [True, True, False], [False] * 3]]])
        >>> first, is_causal = reduce_mask(mask, torch.zeros(1, 3))
        >>> first.tolist(), is_causal.item()
        ([[0, 0, -1]], True)
    """
    if mask.shape[1] != 1:
        raise DataError(f"attention_mask={tuple(mask.shape)}: must be (B, 1, T, T), one mask for all heads")
    size = tokens.shape[1]
    index = torch.arange(size, device=tokens.device)
    rows, queries = torch.arange(len(tokens), device=tokens.device)[:, None, None], index[:, None]

    def sees(keys: Tensor) -> Tensor:
        if isinstance(mask, BlockMask):
            return mask.mask_mod(rows, rows.new_zeros(()), queries, keys).expand(*tokens.shape, keys.shape[-1])
        visible = mask[rows % len(mask), 0, queries, keys]
        return visible == 0 if mask.is_floating_point() else visible.bool()

    # A query that does not see the token before it begins a document.
    begins = ~sees((queries - 1).clamp(min=0))[..., 0] | (index == 0)
    is_attended = sees(queries)
    first = torch.where(begins, index, 0).cummax(-1).values[..., None]
    # T^2 elements a row are too many for long rows, so that 64 keys are compared, and those around the ends.
    sample = index[:: 1 + size // 64].expand(*tokens.shape, -1)
    keys = torch.cat([sample, first - 1, first, (queries + 1).expand_as(first)], -1).clamp(0, size - 1)
    expected = (keys >= first) & (keys <= queries) & is_attended
    return torch.where(is_attended, first, PADDING)[..., 0], (sees(keys) == expected).all()


def measure_lengths(documents: IntArray, chunk: int | None) -> IntArray:
    """Measure the documents of all rows, or their chunks of tokens, which count from the first of each document.

    Shapes: int64 (B, T) -> int64 (documents,).
    Example:
        >>> measure_lengths(np.array([[0, 0, 0, 1], [-1, -1, 0, 0]]), None), measure_lengths(np.zeros((1, 5)), 2)
        (array([3, 1, 2]), array([2, 2, 1]))
    """
    # A document's number counts within its row, so that rows are numbered apart.
    numbers = np.arange(len(documents))[:, None] * (documents.max() + 1) + documents
    lengths = np.diff(np.flatnonzero(np.diff(numbers[documents != PADDING], prepend=-1, append=-1)))
    if chunk is None:
        return lengths
    parts: list[int] = []
    for length in lengths.tolist():
        parts += [min(chunk, length - start) for start in range(0, length, chunk)]
    return np.array(parts, dtype=np.int64)


def copy_to_host(received: Received) -> None:
    """Replace tensors by copies in memory of their own on the host, from a GPU without a wait."""
    for name, value in vars(received).items():
        if isinstance(value, Tensor):
            # From a GPU this needs pinned memory. On the CPU a copy must not share the batch, which changes.
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            setattr(received, name, copy.copy_(value.detach(), non_blocking=True))
            if value.is_cuda:
                received.ready = torch.cuda.Event()
                received.ready.record()
