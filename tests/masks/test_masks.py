import pytest
import torch

from lab.masks import MASKS


def drawn(text):
    return [[mark == "x" for mark in line.split()] for line in text.strip().splitlines()]


def mask_of(name, q_index, k_index, docs):
    q_index, k_index, docs = (torch.as_tensor(x) for x in (q_index, k_index, docs))
    return MASKS[name]().visible(q_index[:, None], k_index[None, :], docs[q_index][:, None], docs[k_index][None, :])


DOCS = [0, 0, 1, 1, 2]
PICTURES = {  # drawn from the definitions: causal; same document; same document or document 0
    "causal": """
        x . . . .
        x x . . .
        x x x . .
        x x x x .
        x x x x x""",
    "document": """
        x . . . .
        x x . . .
        . . x . .
        . . x x .
        . . . . x""",
    "anchor": """
        x . . . .
        x x . . .
        x x x . .
        x x x x .
        x x . . x""",
}


@pytest.mark.parametrize("name", PICTURES)
def test_mask_is_the_drawn_one(name):
    mask = mask_of(name, range(5), range(5), DOCS)
    assert mask.dtype == torch.bool
    assert mask.tolist() == drawn(PICTURES[name])
