"""Tokenizers: any tokenizer.json, or a byte-pair encoding trained on the corpus; and the tokens of one task.

Long conversations are cut between exchanges:

    conversation    U1 A1 | U2 A2 | U3 A3 | U4 A4        at most 5 tokens a sample, each turn one
    samples         U1 A1 U2 A2,  U3 A3 U4 A4            (a third exchange would make 6)

Source: arXiv:2401.07004, section 4.1 (SFT data), which follows the cleaning of Zheng et al. 2023 (FastChat): English
alone, none of less than 10,000 tokens, longer ones split to at most 16,384. FastChat names the language by a
classifier; here it is the share of ASCII among the letters, which Dutch or Italian pass as well.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lab.core.errors import DataError
from lab.core.files import temporary_of, write_atomic
from lab.data import synthetic
from lab.data.chat import UNSCORED, Parts
from lab.data.config import Bpe, Conversations, DataConfig
from lab.data.corpora import Item, Reader, TextDocument, open_corpus
from lab.data.encoding import cut_text, encode_texts, own_settings, read_unchanged
from lab.data.shards import SPLITS, Manifest, Split, TokenShardWriter, task_name, token_dtype
from lab.data.sources import hash_sources, local_root, times_of
from lab.data.streaming import Listing

TOKENIZER = "tokenizer.json"
BATCH_DOCUMENTS = 256
CACHED = 256  # texts whose tokens are kept: tags, and the turns of a conversation that is being cut
SAMPLE_CHARACTERS = 10_000_000  # of one document, that a tokenizer is trained on
HASH_BYTES = 8
BOS, EOS = "<bos>", "<eos>"
# words with their leading space, single digits, punctuation, white space: numbers are split into digits
PIECES = r" ?[^\s\p{N}\p{P}\p{S}]+|\p{N}| ?[\p{P}\p{S}]+|\s+(?!\S)|\s+"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose documents begin with <bos>; the caller ends them with <eos>."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pieces, in_bytes])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def words_of(text: str) -> list[str]:
        return [word for word, _ in split.pre_tokenize_str(text)]  # the tokenizer is locked while it is trained

    tokenizer.train_from_iterator((piece for text in texts for piece, _ in cut_text(text, words_of)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def tokenizer_file(path: Path) -> Path:
    """Return the tokenizer.json that a path names, or that the folder holds.

    Raises: DataError for a missing file.
    """
    file = path / TOKENIZER if path.is_dir() else path
    if not file.is_file():
        get = f"hf download meta-llama/Meta-Llama-3-8B tokenizer.json --local-dir {path}"
        rule = "no such file; name a tokenizer.json or a folder with one"
        raise DataError(f"data.tokenizer.path={path}: {rule}; Llama-3's comes by {get}")
    return file


def load_tokenizer(path: Path, eos: str | None = None) -> Tokenizer:
    """Read a tokenizer.json, or the one in a folder; a text that spells a special token, or `eos`, is text.

    All commands read tokenizers here. Whatever else the file sets is switched off: a length at which texts are cut or
    to which they are padded, and random merges.

    Raises: DataError for a missing or broken file.
    """
    tokenizer = read_unchanged(tokenizer_file(path))
    for added in tokenizer.get_added_tokens_decoder().values():
        if added.content == eos:  # the library encodes a text that spells an added token which is not special
            added.special = True
            tokenizer.add_special_tokens([added])
    tokenizer.encode_special_tokens = True  # <eos> in a text is plain text and ends nothing
    for switch_off in own_settings(tokenizer).values():
        switch_off()
    return tokenizer


def check_ids(ids: np.typing.ArrayLike, vocab_size: int) -> None:
    """Refuse ids beyond the model's vocabulary.

    Raises: DataError.
    """
    if np.max(ids, initial=0) >= vocab_size:
        raise DataError(f"tokenizer.json: has more ids than the model's {vocab_size}; use the model's own tokenizer")


def n_ids(tokenizer: Tokenizer) -> int:
    """Return the largest id plus one, which may be more than there are tokens."""
    return 1 + max(tokenizer.get_vocab().values())


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a model's tokenizer, which must not be missing.

    Raises: DataError.
    """
    if tokenizer is None:
        raise DataError("tokenizer.json: missing; put it into the Hugging Face folder, or prepare the run's shards")
    return tokenizer


def special_ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after every text.

    Raises: DataError for one that deletes text.
    """
    encoding = tokenizer.encode("a")
    marks = encoding.special_tokens_mask
    text = [place for place, special in enumerate(marks) if not special]
    if not text:
        raise DataError("tokenizer.json: turns the text a into nothing; correct its normalizer")
    return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """Hash the vocabulary, every token with its id, in hexadecimal; equal hashes mean interchangeable ids."""
    entries = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def obtain_tokenizer(config: DataConfig, folder: Path, reader: Reader) -> Tokenizer:
    """Read the folder's tokenizer, or create it: a copy of the given file, or a BPE trained on the training documents.

    Raises: DataError.
    """
    path = folder / TOKENIZER
    choice = config.tokenizer
    if path.exists():
        return load_tokenizer(path)
    if isinstance(choice, Bpe):
        texts = (text[:SAMPLE_CHARACTERS] for text, split in texts_of(config, reader) if split == "train")
        # with short windows the sample may lack the needle test's words
        needle_test = synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION
        first = [needle_test] if isinstance(config.corpus, synthetic.Synthetic) else []
        tokenizer = train_bpe(chain(first, islice(texts, config.sample_documents)), choice.vocab_size)
    else:
        tokenizer = load_tokenizer(Path(choice.path), choice.eos)
    write_atomic(path, tokenizer.to_str().encode("utf-8"))
    return tokenizer


def texts_of(config: DataConfig, reader: Reader) -> Iterator[tuple[str, Split]]:
    """Read all texts of a corpus, each with its split."""
    items = chain.from_iterable(map(reader.read, range(reader.n_tasks)))
    return ((item.text, split_of(item.text, config.held_out_frac)) for item in items if isinstance(item, TextDocument))


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
    """Say whether a tokenizer's file, if it is still there, differs from the copy with the shards."""
    choice = config.tokenizer
    if isinstance(choice, Bpe) or not Path(choice.path).exists():
        return []
    same = load_tokenizer(Path(choice.path), choice.eos).to_str() == load_tokenizer(folder).to_str()
    return [] if same else [f"data.tokenizer.path={choice.path} was changed"]


def split_of(text: str, held_out_frac: float) -> Split:
    """Assign a text to a split by its hash, so that duplicates share a split."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=HASH_BYTES).digest()
    return SPLITS[int.from_bytes(digest, "little") < int(held_out_frac * 2 ** (8 * HASH_BYTES))]


def run_task(config: DataConfig, folder: Path, eos: int, listing: Listing, task: int) -> Manifest:
    """Tokenize one task of the corpus, which holds the listed files, into one shard."""
    tokenizer = load_tokenizer(folder)
    reader = open_corpus(config, listing)
    items = reader.read(task)
    root = local_root(config)
    times = {} if root is None else times_of(root, [*listing.files][task :: reader.n_tasks])
    marks = config.tags or isinstance(config.corpus, Conversations)
    dtype = token_dtype(n_ids(tokenizer))
    place = folder / task_name(task)
    writer = TokenShardWriter(temporary_of(place), dtype, name=config.shard_name, marks_scored=marks)
    before, after = special_ends(tokenizer)

    @lru_cache(CACHED)
    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def count(parts: Parts) -> int:
        return sum(len(encode(text)) for text, _ in parts) + len(before) + len(after) + 1  # the end of the document

    if isinstance(config.corpus, Conversations):
        items = samples_of(config.corpus, items, count)
    while batch := list(islice(items, BATCH_DOCUMENTS)):
        documents = [item for item in batch if isinstance(item, TextDocument)]
        writer.skips.update(item for item in batch if isinstance(item, str))
        splits = [split_of(document.text, config.held_out_frac) for document in documents]
        parts = [document.parts or ((document.text, True),) for document in documents]
        encoded = {}
        for split in SPLITS:
            texts = [text for own, of in zip(parts, splits, strict=True) if of == split for text, _ in own]
            encoded[split] = encode_texts(tokenizer, texts, counts_bytes=split == "held_out")
        for document, split, own in zip(documents, splits, parts, strict=True):
            tag = encode(f"{document.source}\n") if config.tags else []
            # neither a tag is scored nor a prompt (arXiv:2411.13476, section 5.2; 2401.07004, section 4)
            pieces: list[tuple[Any, Any, bool]] = [(before, 0, True), (tag, 0, False)]
            pieces += [(*next(encoded[split]), scored) for _, scored in own]
            pieces.append(([*after, eos], 0, True))
            lengths = [len(ids) for ids, _, _ in pieces]
            ids = np.concatenate([ids for ids, _, _ in pieces], dtype=np.uint32, casting="unsafe")  # [] is of floats
            marked = np.repeat([scored for _, _, scored in pieces], lengths)
            n_bytes = None
            if split == "held_out":
                n_bytes = np.concatenate([np.broadcast_to(n, k) for (_, n, _), k in zip(pieces, lengths, strict=True)])
            writer.add(split, ids, document.source, marked, n_bytes)
    if root is not None:
        writer.inputs = hash_sources(root, times)
    return writer.close(place)


def samples_of(corpus: Conversations, items: Iterable[Item], count: Callable[[Parts], int]) -> Iterator[Item]:
    """Yield the conversations that a corpus's settings keep, cut; `count` counts the tokens of some parts."""

    def samples() -> Iterator[Item]:
        for item in items:
            if isinstance(item, str) or item.parts is None:
                yield item
            elif corpus.min_ascii and ascii_share(item.text) < corpus.min_ascii:
                yield "of other letters than ASCII"
            else:
                for piece in cut(item.parts, corpus.max_tokens, count):
                    if not any(scored for _, scored in piece):
                        yield UNSCORED
                    elif corpus.min_tokens and count(piece) < corpus.min_tokens:
                        yield f"shorter than {corpus.min_tokens} tokens"
                    else:
                        yield TextDocument("".join(text for text, _ in piece), item.source, piece)

    taken = 0
    for sample in samples():
        yield sample
        taken += isinstance(sample, TextDocument)
        if taken == corpus.limit:
            return


def cut(parts: Parts, most: int | None, count: Callable[[Parts], int]) -> Iterator[Parts]:
    """Cut a conversation into runs of whole exchanges of at most `most` tokens; a longer exchange is a run of its own.

    An exchange is what precedes a response, and the response.
    """
    ends = [place + 1 for place, (_, scored) in enumerate(parts) if scored or place + 1 == len(parts)]
    start = 0
    for before, end in pairwise([0, *ends]):
        if most is not None and before > start and count(parts[start:end]) > most:
            yield parts[start:before]
            start = before
    yield parts[start:]


def ascii_share(text: str) -> float:
    """Return the share of ASCII among a text's letters; 1 for a text without letters."""
    letters = [character for character in text if character.isalpha()]
    return sum(map(str.isascii, letters)) / len(letters) if letters else 1.0
