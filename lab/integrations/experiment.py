"""What only a model itself tells: whether it is causal, and whether it keeps the documents of a row apart.

Three forwards receive the arguments of one that trains, but for some token ids:

    documents      0 0 0 1 1 1        a, b: two ids
    first          a a a x y z
    second         b b b x y z        if outputs of document 1 change, its tokens see document 0
    third          a a a x b b        if an output before the changed tokens changes, the model is not causal

Rows of one document are laid out as two halves, if position ids or boundaries state the documents. The forwards run in
eval mode without gradients, from the same random state, on copies of buffers and caches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook

from lab.core.errors import ConfigError, DataError
from lab.core.types import IntArray
from lab.integrations import layout
from lab.integrations.layout import PADDING, Names
from lab.integrations.retrieval import as_evaluated

Arguments = Mapping[str, Any]


class Experiment:
    """The verdicts on a model, by form of arguments: their names and dimensions, one row or more, and the kernel.

    The recurrent layers of a model that `is_hybrid` see all documents before, which says nothing of its attention.
    """

    def __init__(self, input: str, names: Names, logits: Callable[[Any], Tensor], is_hybrid: bool) -> None:
        self.input, self.names, self.logits, self.is_hybrid = input, names, logits, is_hybrid
        self.verdicts: dict[tuple[object, ...], tuple[bool, bool]] = {}
        self.has_run = False

    def examine(self, model: nn.Module, inner: nn.Module, args: Sequence[Any], kwargs: Arguments) -> bool:
        """Return whether documents are divided with such arguments; run the forwards at the first of each form.

        `inner` is the module below wrappers of `model`, whose forward names the arguments.

        Raises: ConfigError for a model that is not causal, and for a new form if the model is sharded; DataError for
            arguments that leave the layout open.
        """
        names = list(signature(inner.forward).parameters)[: len(args)]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        name, config = type(inner).__name__, getattr(inner, "config", None)
        tokens = arguments.get(self.input)
        uses_cache = arguments.get("use_cache", getattr(config, "use_cache", None))
        form = (
            isinstance(tokens, Tensor) and tokens.dim() > 1 and len(tokens) > 1,
            getattr(config, "_attn_implementation", None),
            uses_cache,
            *sorted((name, describe(value)) for name, value in arguments.items() if value is not None),
        )
        if form not in self.verdicts:
            self.verdicts[form] = self.run(model, inner, arguments, (names, list(kwargs)))
        is_causal, divides = self.verdicts[form]
        if not is_causal:
            raise ConfigError(f"model={name}: later tokens change earlier outputs; f and g are those of causal models")
        return not uses_cache if self.is_hybrid else divides

    def run(
        self, model: nn.Module, inner: nn.Module, arguments: dict[str, Any], passed: tuple[list[str], list[str]]
    ) -> tuple[bool, bool]:
        """Run the forwards; return whether the model is causal, and whether it divides documents.

        `passed` are the names of positional and of named arguments.
        """
        is_sharded = any(
            isinstance(part, (DTensor, FullyShardedDataParallel)) or hasattr(part, "ds_id")  # DeepSpeed's own name
            for part in (*inner.parameters(), *model.modules())
        )
        if is_sharded and self.has_run:
            # The other ranks may not have received such arguments, and run no forwards.
            rule = "is sharded, and its first forward did not have these arguments"
            raise ConfigError(f"model={type(inner).__name__}: {rule}; pass the same ones from the first forward on")
        self.has_run = True
        # FSDP gathers parameters in the forward of its wrapper. That of DDP has calls of all ranks.
        runs = model if is_sharded else inner

        def forward(changed: Arguments) -> Tensor | None:
            args, kwargs = ({name: changed[name] for name in names} for names in passed)
            tokens = torch.atleast_2d(changed[self.input])
            return run_once(runs, lambda: runs(*args.values(), **kwargs), self.logits, tokens.shape)

        with on_copies(inner, is_sharded):
            try:
                return compare(inner, forward, arguments, self.input, self.names)
            except (ConfigError, DataError):
                for _ in range(3 * is_sharded):  # the other ranks wait
                    forward(arguments)
                raise
            finally:
                for module in model.modules():
                    if isinstance(module, FSDPModule):
                        module.unshard()  # in case that FSDP's own hook ran before


def describe(value: object) -> str:
    """Return a tensor's dimensions, a switch itself, and of any other argument its type."""
    if isinstance(value, Tensor):
        return str(value.dim())
    return str(value) if isinstance(value, (bool, str)) else type(value).__name__


def compare(
    model: nn.Module,
    forward: Callable[[Arguments], Tensor | None],
    arguments: dict[str, Any],
    input: str,
    names: Names,
) -> tuple[bool, bool]:
    """Run the three forwards; return whether the model is causal, and whether it divides documents.

    Raises: ConfigError, DataError for arguments that leave the layout open.
    """
    documents = find_documents(arguments, input, names)
    if (documents == documents[:, :1]).all() and documents.shape[1] > 1:
        lay_out_halves(arguments, documents.shape[1], names)
        documents = find_documents(arguments, input, names)
    ids = arguments[input]
    of_first, of_last = (torch.from_numpy(mask).to(ids.device) for mask in select_tokens(documents))
    low, high = int(ids.min()), int(ids.max())
    if low == high:
        high = abs(low - 1)
    base = ids.masked_fill(of_first.view(ids.shape), low)
    changed = (ids.masked_fill(of_first.view(ids.shape), high), base.masked_fill(of_last.view(ids.shape), high))
    outputs = [forward({**arguments, input: tokens}) for tokens in (base, *changed)]
    found = [output for output in outputs if output is not None]
    if len(found) < len(outputs):  # no output by token: the arguments are believed
        return True, True
    first, last = ((output - found[0]).abs().amax(-1).nan_to_num() for output in found[1:])
    is_attended = torch.from_numpy(documents != PADDING).to(ids.device)
    is_before = is_attended & (of_last.cumsum(-1) == 0)
    effect = relative_change(last, is_before, of_last)
    # Where numbers are rounded, the expert of a token, and so its rounding, may depend on the other tokens of a batch.
    is_rounded = torch.is_autocast_enabled(ids.device.type) or next(model.parameters()).dtype != torch.float32
    is_causal = effect <= (0.03 if is_rounded else 1e-5)
    # What changes earlier outputs of a causal model is rounding alone.
    return is_causal, relative_change(first, is_attended & ~of_first, of_first) <= max(1e-5, 4 * effect)


def relative_change(change: Tensor, of: Tensor, by: Tensor) -> float:
    """Return the largest change of the outputs of some tokens over that of the tokens that were changed."""
    own, others = (float(torch.where(tokens, change, 0).max()) for tokens in (by, of))
    return others / own if own else others


def find_documents(arguments: Arguments, input: str, names: Names) -> IntArray:
    """Return the document of each token; int64 (B, T)."""
    received = layout.read_arguments(input, arguments, names)
    layout.copy_to_host(received)
    if received.tokens.is_cuda:
        torch.cuda.synchronize()
    return np.broadcast_to(layout.resolve_layout(received)[1], received.tokens.shape)


def lay_out_halves(arguments: dict[str, Any], size: int, names: Names) -> None:
    """Lay out rows as two documents, if position ids or boundaries state the documents."""
    if layout.find("mask", arguments, names)[1] is not None:
        return
    name, positions = layout.find("positions", arguments, names)
    if positions is not None:
        index = torch.arange(size, device=positions.device)
        arguments[name] = torch.where(index < size // 2, index, index - size // 2).to(positions).expand_as(positions)
    boundaries = layout.find("boundaries", arguments, names)[1]
    for name, value in arguments.items():
        # The boundaries of the keys equal those of the queries.
        if boundaries is not None and isinstance(value, Tensor) and torch.equal(value, boundaries):
            arguments[name] = boundaries.new_tensor([0, size // 2, size])


def select_tokens(documents: IntArray) -> tuple[Any, Any]:
    """Select what is changed: the first of several documents of a row, and the second half of the longest one.

    Shapes: int64 (B, T) -> bool (B, T) both.
    Example:
        >>> first, last = select_tokens(np.array([[-1, 0, 0, 1, 1, 1, 1]]))
        >>> first.astype(int).tolist(), last.astype(int).tolist()
        ([[0, 1, 1, 0, 0, 0, 0]], [[0, 0, 0, 0, 0, 1, 1]])
    """
    of_first = np.zeros(documents.shape, dtype=np.bool_)
    is_last = np.zeros_like(of_first)
    for row, own in enumerate(documents):
        numbers, begins, sizes = np.unique(own[own != PADDING], return_index=True, return_counts=True)
        if len(numbers) > 1:
            of_first[row] = own == numbers[begins.argmin()]
        if len(numbers):
            longest = np.flatnonzero(own == numbers[sizes.argmax()])
            is_last[row, longest[len(longest) // 2 :]] = True
    return of_first, is_last


def run_once(
    model: nn.Module, call: Callable[[], Any], logits: Callable[[Any], Tensor], shape: torch.Size
) -> Tensor | None:
    """Run a forward in eval mode; return its logits, or without any the output of the last module.

    Some columns are enough: all logits of a large vocabulary would take gigabytes.

    Shapes: `shape` (B, T) -> float32 (B, T, columns); None without such an output.
    """
    last: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 2 and output.shape[:2] == shape:
            last[:] = [output[..., :: 1 + output.shape[-1] // 64].float().flatten(2).clone()]

    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with as_evaluated(model), torch.random.fork_rng(devices):
        handle = register_module_forward_hook(keep)
        try:
            output = call()
        finally:
            handle.remove()
            # Casts without gradients would be used again by the forward that trains.
            torch.clear_autocast_cache()
        with suppress(Exception):  # a loss, for instance
            keep(model, (), logits(output))
    return last[0] if last else None


@contextmanager
def on_copies(model: nn.Module, is_sharded: bool) -> Iterator[None]:
    """Let forwards change copies of a model's buffers, and of tensors and caches that are attributes of its modules."""
    copies = {id(part): part for part in (*model.modules(), *model.parameters())}  # what is not copied
    saved = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        for module, attributes, buffers in saved:
            module._buffers.update({name: deepcopy(buffer, copies) for name, buffer in buffers.items()})
            for name, value in attributes.items():
                is_cache = isinstance(value, (Tensor, list, dict)) or "cache" in type(value).__name__.lower()
                # FSDP manages parameters as attributes.
                if is_cache and not is_sharded and name not in vars(nn.Module()):
                    with suppress(Exception):  # what cannot be copied
                        vars(module)[name] = deepcopy(value, copies)
        yield
    finally:
        for module, attributes, buffers in saved:
            module._buffers.clear()
            module._buffers.update(buffers)
            if not is_sharded:
                for name in vars(module).keys() - attributes:
                    delattr(module, name)
                vars(module).update(attributes)
