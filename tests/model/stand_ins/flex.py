"""Stand-in for compiled flex attention, which is told blocks and asks pairs of some of them.

Source: torch/nn/attention/flex_attention.py.
"""

from typing import NamedTuple

import torch

from tests.model.stand_ins.definition import check, dense, without


class AuxOutput(NamedTuple):
    lse: torch.Tensor | None = None
    max_scores: torch.Tensor | None = None


def flex_attention(
    query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False,
    kernel_options=None, *, return_aux=None,
):  # fmt: skip
    """Stand in for compiled flex attention: it visits the listed blocks alone, and asks no pair of a full block."""
    without(score_mod, return_lse)
    check(query.shape[1] == key.shape[1] or enable_gqa, "Expect query and key/value to have the same number of heads")
    check(query.dtype == key.dtype == value.dtype, "Expected query, key, and value to have the same dtype")
    batch, n_q, n_k = len(query), query.shape[2], key.shape[2]
    check(block_mask.seq_lengths == (n_q, n_k), "block_mask was created for other lengths")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for b in range(batch):
        seen = flex_visible(block_mask, b, n_q, n_k)
        q, k, v = (x[b].transpose(0, 1) for x in (query, key, value))
        out, lse = dense(q, k, v, seen, scale)
        rows.append((out.transpose(0, 1).to(query.dtype), lse.float()))
    out, lse = (torch.stack(x) for x in zip(*rows, strict=True))
    return (out, AuxOutput(lse=lse)) if return_aux is not None and return_aux.lse else out


def flex_visible(block_mask, b, n_q, n_k):
    """Read a block mask as the kernel does."""
    height, width = block_mask.BLOCK_SIZE
    row = min(b, len(block_mask.kv_num_blocks) - 1)
    seen = torch.zeros(n_q, n_k, dtype=torch.bool)
    for number in range(-(-n_q // height)):
        q = slice(number * height, min(number * height + height, n_q))
        for kind in ("", "full_"):
            count = int(getattr(block_mask, f"{kind}kv_num_blocks")[row, 0, number])
            for block in getattr(block_mask, f"{kind}kv_indices")[row, 0, number, :count].tolist():
                k = slice(block * width, min(block * width + width, n_k))
                if kind:
                    seen[q, k] = True
                else:
                    places = torch.arange(q.start, q.stop)[:, None], torch.arange(k.start, k.stop)[None, :]
                    seen[q, k] = block_mask.mask_mod(torch.tensor(b), torch.tensor(0), *places)
    return seen
