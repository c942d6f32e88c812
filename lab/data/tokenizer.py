"""Tokenizers: any tokenizer.json, or a byte-pair encoding trained on the corpus."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lab.core.errors import DataError
from lab.core.files import write_atomic
from lab.data import synthetic
from lab.data.config import Bpe, DataConfig, hash_json
from lab.data.corpora import Reader, TextDocument
from lab.data.encoding import switch_off_extras
from lab.data.shards import SPLITS, Split

TOKENIZER = "tokenizer.json"
LONGEST_WORD = 1000  # characters, on which a tokenizer is trained; longer ones are cut
BOS, EOS = "<bos>", "<eos>"
# words with their leading space, single digits, punctuation, white space: numbers are split into digits
PIECES = r" ?[^\s\p{N}\p{P}\p{S}]+|\p{N}| ?[\p{P}\p{S}]+|\s+(?!\S)|\s+"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose documents begin with <bos>; the caller ends them with <eos>."""
    tokenizer = Tokenizer(models.BPE())
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), in_bytes])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        # all bytes, so that every text can be encoded, also one with characters that no training document has
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    # training on a word takes the square of its length
    def cut_words() -> Iterator[str]:
        for text in texts:
            # words have no space behind their first character, or nothing but white space
            if not re.search(rf"[^ ]{{{LONGEST_WORD}}}|\s{{{LONGEST_WORD}}}", text):
                yield text
                continue
            for _, (begin, end) in split.pre_tokenize_str(text):
                for start in range(begin, end, LONGEST_WORD):
                    yield text[start : min(start + LONGEST_WORD, end)]

    tokenizer.train_from_iterator(cut_words(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def tokenizer_file(path: Path) -> Path:
    """Return the tokenizer.json that a path names, or the one in a folder.

    Raises: DataError for a missing file.
    """
    file = path / TOKENIZER if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"data.tokenizer.path={path}: no such file; name a tokenizer.json or a folder with one; Llama-3's comes by "
            f"hf download meta-llama/Meta-Llama-3-8B tokenizer.json --local-dir {path}"
        )
    return file


def load_tokenizer(path: Path, eos: str | None = None) -> Tokenizer:
    """Read a tokenizer.json, or the one in a folder; a text that spells a special token, or `eos`, is text.

    All commands read tokenizers here. Whatever else the file sets is switched off: a length at which texts are cut or
    to which they are padded, and random merges.

    Raises: DataError for a missing or broken file.
    """
    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every broken file
        raise DataError(f"data.tokenizer.path={file}: not a tokenizer.json ({error}); save it again") from error
    if not tokenizer.get_vocab_size():
        raise DataError(f"data.tokenizer.path={path}: has no tokens; save it again")
    for added in tokenizer.get_added_tokens_decoder().values():
        if added.content == eos:
            # encode_special_tokens, below, is about special tokens alone: others are still found in texts
            added.special = True
            tokenizer.add_special_tokens([added])
    tokenizer.encode_special_tokens = True  # <eos> in a text is plain text and ends nothing
    switch_off_extras(tokenizer)
    return tokenizer


def check_ids(ids: np.typing.ArrayLike, vocab_size: int) -> None:
    """Reject ids beyond the model's vocabulary.

    Raises: DataError.
    """
    if np.max(ids, initial=0) >= vocab_size:
        raise DataError(f"tokenizer.json: has more ids than the model's {vocab_size}; use the model's own tokenizer")


def n_ids(tokenizer: Tokenizer) -> int:
    """Return the largest id plus one, which may be more than there are tokens."""
    return 1 + max(tokenizer.get_vocab().values())


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a model's tokenizer, or reject a model without one.

    Raises: DataError.
    """
    if tokenizer is None:
        raise DataError("tokenizer.json: missing; put it into the Hugging Face folder, or prepare the run's shards")
    return tokenizer


def special_ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after every text.

    Raises: DataError for one that deletes text.
    """
    # tokens that are not special mark where the text begins and ends in any encoding
    encoding = tokenizer.encode("a")
    marks = encoding.special_tokens_mask
    text = [index for index, is_special in enumerate(marks) if not is_special]
    if not text:
        raise DataError("tokenizer.json: turns the text a into nothing; correct its normalizer")
    return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """Hash the vocabulary, every token with its id, in hexadecimal; equal hashes mean interchangeable ids."""
    return hash_json(sorted(tokenizer.get_vocab().items()))


def obtain_tokenizer(config: DataConfig, folder: Path, reader: Reader) -> Tokenizer:
    """Read the folder's tokenizer, or create it: a copy of the given file, or a BPE trained on the training documents.

    Raises: DataError.
    """
    path = folder / TOKENIZER
    choice = config.tokenizer
    if path.exists():
        return load_tokenizer(path)
    if isinstance(choice, Bpe):
        documents = split_documents(config, reader)
        texts = (text[:10_000_000] for text, split in documents if split == "train")
        sample: Iterable[str] = islice(texts, config.sample_documents)
        if isinstance(config.corpus, synthetic.Synthetic):
            # a sample of short documents may lack the needle test's words
            sample = chain([synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION], sample)
        tokenizer = train_bpe(sample, choice.vocab_size)
    else:
        shared = Path(config.folder, choice.path)  # the shards of a mixture's first corpus
        is_shared = (shared / TOKENIZER).exists()
        tokenizer = load_tokenizer(shared if is_shared else Path(choice.path), choice.eos)
    write_atomic(path, tokenizer.to_str().encode())
    return tokenizer


def split_documents(config: DataConfig, reader: Reader) -> Iterator[tuple[str, Split]]:
    """Read the texts of all documents of a corpus, each with its split."""
    for task in range(reader.n_tasks):
        for item in reader.read(task):
            if isinstance(item, TextDocument):
                yield item.text, assign_split(item.text, config.held_out_frac)


def end_of_document(config: DataConfig, tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends every document.

    Raises: DataError when the tokenizer has no such token.
    """
    token = EOS if isinstance(config.tokenizer, Bpe) else config.tokenizer.eos
    index: int | None = tokenizer.token_to_id(token)
    if index is None:
        raise DataError(f"data.tokenizer.eos={token}: the tokenizer has no such token; use one of its tokens")
    return index


def compare_tokenizer(config: DataConfig, folder: Path) -> list[str]:
    """Report whether a tokenizer's file, if it still exists, differs from the copy with the shards."""
    choice = config.tokenizer
    if (
        isinstance(choice, Bpe)
        or not Path(choice.path).exists()
        or load_tokenizer(Path(choice.path), choice.eos).to_str() == load_tokenizer(folder).to_str()
    ):
        return []
    return [f"data.tokenizer.path={choice.path} was changed"]


def assign_split(text: str, held_out_frac: float) -> Split:
    """Assign a text to a split by its hash, so that duplicates share a split."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return SPLITS[int.from_bytes(digest, "little") < int(held_out_frac * 2**64)]
