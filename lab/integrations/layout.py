"""Documents and positions of the tokens that a model's forward received.

What a model attends is stated by its arguments, by the names that transformers 5 uses, or by those that the user names:

    attention_mask  (B, T) of 0 and 1: padding, on either side; (B, 1, T, T) or a BlockMask: which keys each query sees
    position_ids    (B, T): a row without a mask begins a new document where ids do not go on by 1
    cu_seq_lens_q   (documents + 1,): the boundaries of the documents of a packed row; also cu_seqlens

    position_ids  0 1 2 0 1 | attention_mask  0 1 1 1 1 | cu_seq_lens_q  0 3 5
    documents     0 0 0 1 1 | documents      -1 0 0 0 0 | documents      0 0 0 1 1

Arguments from which two layouts follow, or whose meaning is not known, are rejected: nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from lab.core.errors import ConfigError, DataError
from lab.core.types import IGNORE, IntArray

Names = Mapping[str, tuple[str, ...]]
PADDING = -1  # document of a token that is not attended
# Of each of the watcher's options, the arguments that it reads by default.
NAMES = {
    "positions": ("position_ids",),
    "targets": ("targets", "shift_labels", "labels"),
    "boundaries": ("cu_seq_lens_q", "cu_seqlens"),
    "mask": ("attention_mask",),
}


@dataclass
class Received:
    """What one forward received: the arguments that state its layout, and its targets.

    Shapes: tokens (B, T); position_ids (B, T) or (1, T) or None; boundaries (documents + 1,) or None; first_keys
        (B, T), the first key that each query sees, -1 for none, or None without a mask; is_causal, whether each
        query sees all keys from its first key to itself and no other, a bool, or None.
    `targets` (B, T) are labels, shifted already if `is_shifted`. `ready` is recorded after the copies to the host.
    `has_pairs` means that a mask states which keys each query sees. `divides` means that tokens do not see other
    documents of their row.
    """

    tokens: Tensor
    position_ids: Tensor | None = None
    boundaries: Tensor | None = None
    first_keys: Tensor | None = None
    is_causal: Tensor | None = None
    targets: Tensor | None = None
    is_shifted: bool = False
    has_pairs: bool = False
    divides: bool = True
    ready: torch.cuda.Event | None = None


def find(role: str, arguments: Mapping[str, Any], names: Names) -> tuple[str, Any]:
    """Return the name and the value of the first argument of a role that is passed; its value is None without any."""
    found = ((name, arguments[name]) for name in names[role] if arguments.get(name) is not None)
    return next(found, (names[role][0], None))


def read_arguments(input: str, arguments: Mapping[str, Any], names: Names) -> Received:
    """Collect the arguments that state the layout.

    Raises: ConfigError for an argument that may state a layout and has no known name; DataError for other types.
    """
    tokens = arguments.get(input)
    if not isinstance(tokens, Tensor) or tokens.dim() not in (1, 2) or tokens.is_floating_point():
        raise DataError(f"input={input}: must be token ids (B, T); name their argument by input=")
    check_names(tokens, arguments, {input, "cu_seq_lens_k", "token_type_ids", *chain(*names.values())})
    received = Received(torch.atleast_2d(tokens))
    name, mask = find("mask", arguments, names)
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        # Attended tokens see the row from its first key on, which padding hides.
        received.first_keys = torch.atleast_2d(mask).long() - 1
        received.is_causal = ((mask == 0) | (mask == 1)).all()
    elif isinstance(mask, BlockMask) or (isinstance(mask, Tensor) and mask.shape[-2:] == 2 * tokens.shape[-1:]):
        if isinstance(mask, Tensor) and mask.dim() < 4:  # (T, T) or (B, T, T)
            mask = mask.reshape(-1, 1, *mask.shape[-2:])
        # Reduced on its device, because T^2 elements a row would be slow to copy.
        received.first_keys, received.is_causal = reduce_mask(mask, received.tokens)
        received.has_pairs = True
    # The name of a mask that a model makes itself.
    elif mask is not None and mask != "causal":
        shape = getattr(mask, "shape", "")
        raise DataError(
            f"{name}={type(mask).__name__}{tuple(shape)}: must be a tensor (B, T) or (B, 1, T, T), or a BlockMask, to "
            "be counted; pass no cache"
        )
    name, positions = find("positions", arguments, names)
    if positions is not None:
        if positions.dim() > 2:
            raise DataError(f"{name}={tuple(positions.shape)}: must be (B, T); several ids a token are not counted")
        received.position_ids = torch.atleast_2d(positions)
    received.boundaries = find("boundaries", arguments, names)[1]
    name, targets = find("targets", arguments, names)
    if targets is not None:
        received.targets, received.is_shifted = torch.atleast_2d(targets), name != "labels"
    return received


def check_names(tokens: Tensor, arguments: Mapping[str, Any], known: set[str]) -> None:
    """Reject arguments that may state a layout under a name that is not known.

    Raises: ConfigError.
    """
    for name, value in arguments.items():
        if name in known:
            continue
        for part in value.values() if type(value) is dict else (value,):
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


def resolve_layout(received: Received) -> tuple[IntArray, IntArray]:
    """Return each token's position and its document, PADDING for tokens that are not attended.

    Shapes: int64 (B, T) both.
    Raises: DataError for arguments that leave the layout open.
    """
    if received.ready is not None:
        received.ready.synchronize()
    shape = tuple(received.tokens.shape)
    documents: IntArray = np.zeros(shape, dtype=np.int64)
    # transformers attends across restarts of position_ids if it gets a mask.
    has_documents = received.first_keys is not None
    if received.first_keys is not None:
        if not received.is_causal:
            rule = "must be 0 and 1 for tokens, or causal within blocks of a row"
            raise DataError(f"attention_mask: {rule}; otherwise distances are not known")
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
        documents[:, 1:] = np.cumsum(steps != 1, axis=1)
    return positions, documents


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


def find_chunks(documents: IntArray, chunk: int) -> IntArray:
    """Number the chunks of documents, which count from the first token of each; PADDING stays.

    Shapes: int64 (B, T) -> int64 (B, T).
    Example:
        >>> find_chunks(np.array([[-1, 0, 0, 0, 1, 1, 1]]), 2).tolist()
        [[-1, 1, 1, 2, 3, 3, 4]]
    """
    index = np.arange(documents.shape[1])
    is_first = np.diff(documents, axis=1, prepend=PADDING - 1) != 0
    since = index - np.maximum.accumulate(np.where(is_first, index, 0), axis=1)
    return np.where(documents == PADDING, PADDING, (is_first | (since % chunk == 0)).cumsum(axis=1) - 1)


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
    for name, value in list(vars(received).items()):
        if not isinstance(value, Tensor) or value.is_meta:
            continue
        # A copy from a GPU without a wait needs pinned memory. One on the CPU must not share the batch, which changes.
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        setattr(received, name, copy.copy_(value.detach(), non_blocking=True))
        if value.is_cuda:  # who reads the copies waits for the last of these events
            received.ready = torch.cuda.Event()
            received.ready.record()


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
