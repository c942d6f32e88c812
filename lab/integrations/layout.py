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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from lab.core.errors import ConfigError, DataError
from lab.core.types import IGNORE, IntArray
from lab.counts import visible_context

Names = Mapping[str, tuple[str, ...]]
NAMES: Names = {  # of arguments, by what they state
    "input": ("input_ids",),
    "positions": ("position_ids",),
    "targets": ("targets", "shift_labels", "labels"),
    "boundaries": ("cu_seq_lens_q", "cu_seqlens"),
    "mask": ("attention_mask",),
}
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
    ready: torch.Event | None = None

    def copy_to_host(self) -> None:
        """Replace tensors by copies in memory of their own on the host, from a GPU without a wait."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                # From a GPU it goes to pinned memory. On the CPU a copy must not share the batch, which changes.
                setattr(self, name, value.detach().to("cpu", non_blocking=True, copy=True))
                if value.is_cuda:
                    self.ready = torch.cuda.current_stream(value.device).record_event()


def find_arguments(arguments: Mapping[str, object], names: Names) -> dict[str, tuple[str, Any]]:
    """Find the name and the value of the first argument of each role that is passed; its value is None without any."""
    found: dict[str, tuple[str, Any]] = {}
    for role, known in names.items():
        found[role] = known[0], None
        for name in reversed(known):
            value = arguments.get(name)
            if value is not None and not isinstance(value, str):  # such as "causal", for a mask that a model makes
                found[role] = name, torch.as_tensor(value) if isinstance(value, (list, tuple)) else value
    return found


def read_layout(arguments: Mapping[str, object], names: Names) -> Received:
    """Find the layout of a forward, and its targets.

    Raises: ConfigError for an argument that may state a layout and has no known name; DataError for other types.
    """
    (input, ids), (name, positions), labels, (ends_name, ends), (mask_name, mask) = find_arguments(
        arguments, names
    ).values()
    if not isinstance(ids, Tensor) or ids.dim() not in (1, 2) or ids.is_floating_point():
        raise DataError(f"input={input}: must be token ids (B, T); name their argument by input=")
    others = {"cu_seq_lens_k", "seq_idx", "token_type_ids", "logits_to_keep", "image_sizes", "image_grid_thw"}
    check_names(ids, arguments, others.union(*names.values()))
    tokens = torch.atleast_2d(ids)
    size = tokens.shape[1]
    index = torch.arange(size, device=tokens.device)
    if positions is None:
        positions = index
    if positions.dim() > 2:
        raise DataError(f"{name}={tuple(positions.shape)}: must be (B, T); several ids a token are not counted")
    positions = positions.expand(tokens.shape)
    if ends is not None and (mask is not None or len(tokens) > 1):
        raise DataError(
            f"{ends_name}={tuple(ends.shape)}: must be the boundaries of one row of {size} tokens, without a mask"
        )
    has_pairs = mask is not None and getattr(mask, "shape", ()) != ids.shape
    if has_pairs:
        # Tokens of one block see the same first key, which numbers the block.
        name, (documents, is_known) = mask_name, reduce_mask(mask_name, mask, tokens)
    elif mask is not None:
        # Attended tokens see the row from its first key on, which padding hides.
        name, documents, is_known = mask_name, torch.atleast_2d(mask).long() - 1, ((mask == 0) | (mask == 1)).all()
    elif ends is not None:
        ends = ends.to(index)
        name, documents = ends_name, torch.bucketize(index, ends[1:], right=True)[None]
        is_known = (ends[0] == 0) & (ends[-1] == size) & (ends.diff() >= 0).all()
    else:
        # transformers attends across restarts of position_ids if it gets a mask.
        steps = positions.diff()
        documents, is_known = pad((steps != 1).cumsum(-1), (1, 0)), (steps <= 1).all()
    return Received(
        tokens,
        find_targets(*labels, tokens, documents),
        positions,
        documents,
        is_known,
        f"{name}: leaves open which tokens see each other; pass a mask of 0 and 1 or of causal blocks, boundaries from "
        f"0 to {size}, or position_ids that go on by 1 in each document",
        has_pairs,
    )


def find_targets(name: str, labels: Tensor | None, tokens: Tensor, documents: Tensor) -> Tensor:
    """Return the target of each token: those of an argument, or without any the next token of its document.

    Shapes: (B, T) -> int64 (B, T), IGNORE where there is none.
    Raises: DataError for labels of another shape.
    Example:
        >>> find_targets("labels", None, torch.tensor([[5, 6, 7]]), torch.tensor([[0, 0, 1]])).tolist()
        [[6, -100, -100]]
    """
    if labels is None:
        following = pad(tokens.long()[:, 1:], (0, 1), value=IGNORE)
        return following.masked_fill(pad(documents.diff() != 0, (0, 1)), IGNORE)
    labels = torch.atleast_2d(labels)
    if labels.shape != tokens.shape:
        raise DataError(
            f"{name}={tuple(labels.shape)}: must be shaped as the tokens, {tuple(tokens.shape)}, to be counted for g"
        )
    return pad(labels[:, 1:], (0, 1), value=IGNORE) if name == "labels" else labels


def check_names(tokens: Tensor, arguments: Mapping[str, object], known: set[str]) -> None:
    """Reject arguments that may state a layout under a name that is not known.

    Raises: ConfigError.
    """
    for name in arguments.keys() - known:
        value = arguments[name]
        if may_state_layout(value, tokens.shape[-1]):
            raise ConfigError(
                f"{name}={type(value).__name__}: may state what tokens see, and has no known name; name it by "
                "positions=, targets=, boundaries= or mask=, or pass it no more"
            )


def may_state_layout(value: object, size: int) -> bool:
    """Return whether a value has several whole numbers, a matrix of the row's size, or a type that is not known."""
    if isinstance(value, dict):
        return any(may_state_layout(part, size) for part in value.values())
    if isinstance(value, (list, tuple)):
        return [*map(type, value)].count(int) > 1 or any(may_state_layout(part, size) for part in value)
    if isinstance(value, Tensor):
        has_numbers = not (value.is_floating_point() or value.is_complex())
        return (has_numbers and value.numel() > 1) or value.shape[-2:] == (size, size)
    # Any class may be a mask, or a cache of other keys.
    return type(value).__module__ not in ("builtins", "torch") and not callable(value)


def reduce_mask(name: str, mask: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first key that each query sees, and whether it sees all keys from there to itself and no other.

    Shapes: (B or 1, 1, T, T), a BlockMask, bool, or added to the logits; tokens (B, T) -> int64 (B, T), bool ().
    Raises: DataError for another mask.
    Example:
        >>> mask = torch.tensor([[[[True, False, False], [True, True, False], [False] * 3]]])
        >>> first, is_causal = reduce_mask("mask", mask, torch.zeros(1, 3))
        >>> first.tolist(), is_causal.item()
        ([[0, 0, -1]], True)
    """
    size = tokens.shape[1]
    shape = tuple(getattr(mask, "shape", ()))
    if shape[1:] != (1, size, size):
        raise DataError(
            f"{name}={type(mask).__name__}{shape}: must be a tensor (B, T), or (B, 1, T, T) for all heads, or a "
            "BlockMask, to be counted; pass no cache"
        )
    index = torch.arange(size, device=tokens.device)
    rows, queries = torch.arange(len(tokens), device=tokens.device)[:, None, None], index[:, None]
    look_up = getattr(mask, "mask_mod", lambda row, head, query, key: mask[row % len(mask), head, query, key])

    def sees(keys: Tensor) -> Tensor:
        visible = look_up(rows, rows.new_zeros(()), queries, keys)
        visible = visible == 0 if visible.is_floating_point() else visible.bool()
        return visible.expand(*tokens.shape, -1)

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
    lengths = np.unique(numbers[documents != PADDING], return_counts=True)[1]
    if chunk is not None:
        begins = np.flatnonzero(visible_context(lengths.tolist()) % chunk == 0)
        lengths = np.diff(begins, append=lengths.sum())
    return lengths
