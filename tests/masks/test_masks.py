import pytest
import torch

from lab.masks import MASKS


def drawn(text):
    return [[mark == "x" for mark in line.split()] for line in text.strip().splitlines()]


DOCS = torch.tensor([0, 0, 1, 1, 2])
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
    index = torch.arange(5)
    mask = MASKS[name]().visible(index[:, None], index[None, :], DOCS[:, None], DOCS[None, :])
    assert mask.dtype == torch.bool
    assert mask.tolist() == drawn(PICTURES[name])
