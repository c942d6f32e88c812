import numpy as np
import pytest

from lab.data.tokenizer import load_tokenizer
from tests.data.stores import refused

ALPHABETS = {
    "ascii": range(0x20, 0x7F),
    "control_and_white_space": [0, 1, 9, 10, 11, 12, 13, 27, 28, 0x85, 0xA0, 0x2028, 0x3000],
    "latin_greek_cyrillic": range(0xA0, 0x530),
    "combining_and_joiners": [*range(0x300, 0x330), 0x200D, 0xFE0F, 0x202E],
    "chinese_korean": [*range(0x4E00, 0x4F00), *range(0xAC00, 0xAD00)],
    "emoji_and_beyond": [*range(0x1F300, 0x1F400), 0x10FFFF, 0xE000],
    "all_together": [9, 10, 32, *range(48, 58), *range(97, 123), 0xE9, 0x301, 0x4E2D, 0x1F600],
}


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_text_comes_back(bpe, alphabet):
    rng = np.random.default_rng(len(alphabet))
    for size in (0, 1, 2, 7, 300):
        for _ in range(5):
            text = "".join(map(chr, rng.choice(list(ALPHABETS[alphabet]), size).tolist()))
            assert bpe.decode(bpe.encode(text).ids) == text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": "1.0"}', b'{"model": {"type": "Nonsense"}}', b"\xff\xfe\x00"],
    ids=["empty", "cut", "list", "no_model", "unknown_model", "not_utf8"],
)
def test_a_broken_file_is_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with refused(f"data.tokenizer.path={path}: not a tokenizer.json ("):
        load_tokenizer(path)
