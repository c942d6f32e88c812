"""The data section of a run's config: corpus, tokenizer, window, mode; imports no torch and reads no files."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, field, replace
from pathlib import PurePath
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from lab.core.schema import Length, NonNegative, OneOf, PathText, Positive, PositiveFloat, Section, Share
from lab.data.chat import USER_ASSISTANT
from lab.data.synthetic import Synthetic as Synthetic  # noqa: PLC0414 - all sections can be imported from here
from lab.data.synthetic import example

Mode = Literal["natural", "concatenated", "uniform"]
REPOSITORY = "cerebras/SlimPajama-627B"


class Stdlib(Section):
    """The running Python's standard library source, a document for each top-level definition."""

    name: Literal["stdlib"] = "stdlib"


class Text(Section):
    """Files of text, each a source: .jsonl, .ndjson, .parquet (a document per row), .txt, .md or .py (one).

    All but .parquet also compressed: .gz, .bz2, .xz or .zst.
    """

    name: Literal["text"] = "text"
    path: PathText
    """A file, a folder searched at all depths, or a pattern of these, as notes/*.md."""


class Dataset(Section):
    """A data set of the hub, or a folder of tables, as the `datasets` library reads it: a document per row."""

    name: Literal["dataset"] = "dataset"
    repository: str | None = None
    """Data set of the hub, OWNER/NAME; its files are streamed."""
    path: PathText | None = None
    """Folder, file or pattern of .arrow, .csv, .tsv, .json, .parquet and the like, or a folder of save_to_disk."""
    config: str | None = None
    """Configuration of the data set. Default: the data set's own default."""
    split: str = "train"
    """Split of the data set."""
    text: str = "text"
    """Column of the text; a dot leads into a nested one."""
    source: str | None = None
    """Column that names a document's source, as meta.redpajama_set_name. Default: the data set is the source."""

    def rules(self) -> Iterator[str]:
        if (self.repository is None) == (self.path is None):
            yield self.format_error("repository", "one of repository and path must be set; set one of them")

    @property
    def label(self) -> str:
        """The name of the data set."""
        return self.repository or PurePath(str(self.path)).name


class Slimpajama(Section):
    """SlimPajama-627B's training split: the data set with the sources in `meta.redpajama_set_name`."""

    name: Literal["slimpajama"] = "slimpajama"
    path: PathText | None = None
    """Folder of .jsonl.zst or .parquet files. Default: they are streamed from the hub."""
    repository: str = REPOSITORY
    """Data set of the hub, OWNER/NAME."""

    def rules(self) -> Iterator[str]:
        if self.path is not None and self.repository != REPOSITORY:
            yield self.format_error("repository", "would be ignored, as path is set; remove one of them")

    @property
    def dataset(self) -> Dataset:
        """The data set of which this is a preset."""
        repository = self.repository if self.path is None else None
        return Dataset(repository=repository, path=self.path, source="meta.redpajama_set_name")


class Conversations(Section):
    """Conversations in ShareGPT's format, a JSON object per line: only the assistant's turns are scored."""

    name: Literal["conversations"] = "conversations"
    path: PathText
    """A .jsonl, .jsonl.zst or .parquet file, or a folder of them, with `conversations`: turns of `from` and `value`."""
    min_tokens: NonNegative = 0
    """Fewest tokens of a conversation, or of each sample of a longer one; shorter ones are skipped."""
    max_tokens: Annotated[Length, Ge(2)] | None = None
    """Most tokens of a sample: longer conversations are cut between turns. Default: none is cut."""
    min_ascii: Share = 0.0
    """Least share of ASCII among a conversation's letters; 0.99 keeps English and few other languages, 0 keeps all."""
    limit: Positive | None = None
    """Samples to take, from the first. Default: all."""
    template: str = USER_ASSISTANT
    """Jinja by which turns become text, special tokens in it too; evaluations and exports take it from the run."""


class OwnCorpus(Section, ABC):
    """The base of the corpora of plugins."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the corpus in the config."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Yield the text of every document, the same on every call."""


CORPORA: dict[str, type[Section]] = {
    "synthetic": Synthetic,
    "stdlib": Stdlib,
    "text": Text,
    "dataset": Dataset,
    "slimpajama": Slimpajama,
    "conversations": Conversations,
}
Corpus = Annotated[
    Synthetic | Stdlib | Text | Dataset | Slimpajama | Conversations | OwnCorpus,
    OneOf(OwnCorpus, CORPORA, "name"),
]


class Mixture(Section):
    """Several corpora in proportion to weights; a list of corpora, each with its `weight`, is short for it."""

    name: Literal["mixture"] = "mixture"
    corpora: tuple[Corpus, ...]
    """The corpora. A BPE is trained on the first, which is also the text of needle tests and of evaluations."""
    weights: tuple[PositiveFloat, ...]
    """Weight of each corpus, its share of the packs, and of the tokens if packs are equally full."""

    def rules(self) -> Iterator[str]:
        """Reject fewer corpora than two, equal ones, mixtures, and another number of weights."""
        n = len(self.corpora)
        if not 2 <= len({*map(str, self.corpora)}) == n == len(self.weights) or Mixture in map(type, self.corpora):
            yield (
                f"corpora=[{n} entries]: must list two corpora or more, no mixtures, each once and "
                "with a weight; correct the list, or set one as data.corpus={...}"
            )


CORPORA["mixture"] = Mixture  # its own corpora are none, by its rules


class Bpe(Section):
    """A byte-level BPE trained on the corpus; every digit is a separate token."""

    method: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Ge(260), Le(2**22)] = 640
    """Maximum number of tokens, including the 256 bytes and 2 special tokens."""


class TokenizerFile(Section):
    """A tokenizer.json, for instance Llama-3's."""

    method: Literal["file"] = "file"
    path: PathText
    """The file, or its folder."""
    eos: str
    """Token that ends every document, for Llama-3 "<|end_of_text|>"."""


TokenizerChoice = Annotated[Bpe | TokenizerFile, Field(discriminator="method")]


class Upsample(Section):
    """Long documents more often and short ones less within each source, whose share of the tokens is kept."""

    longer_than: ClassVar[int] = 4096  # tokens; then a document is long
    share: Annotated[float, Gt(0), Lt(1)] = 0.7
    """Share of each source's tokens in long documents afterwards."""
    tokens: Positive | None = None
    """Approximate number of tokens to train on afterwards. Default: the number before."""


def hash_json(value: object) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class DataConfig(Section):
    """The corpus, the tokenizer and how documents are cut."""

    corpus: Corpus = field(default_factory=Synthetic)
    tokenizer: TokenizerChoice = field(default_factory=Bpe)
    window: Annotated[Length, Ge(2)] = 128
    """Training window L: tokens of the longest segment."""
    mode: Mode = "natural"
    """Documents cut at the window, windows always full, or lengths uniform in 1..L (arXiv:2410.18745, Figure 1)."""
    held_out_frac: Annotated[float, Ge(0), Le(0.5)] = 0.01
    """Share of documents kept from training, chosen by a hash of the text."""
    upsample: Upsample | None = None
    """Long documents copied and short ones excluded, by probe-lab prepare. Default: documents are unchanged."""
    tags: bool = False
    """Whether every document begins with its source's name and a line break, which are not scored."""
    folder: PathText = "shards"
    """Folder of the token shards of all corpora."""
    changed_sources: Literal["reject", "accept"] = "reject"
    """Response to a change of the corpus's files or the tokenizer after preparation."""
    look_ahead: Annotated[int, Ge(1), Le(4096)] = 256
    """Segments a stream may choose from when it fills a pack."""

    @property
    def parts(self) -> list[DataConfig]:
        """The config of each corpus, all with the tokenizer of the first."""
        if not isinstance(self.corpus, Mixture):
            return [self]
        first, *others = [replace(self, corpus=corpus) for corpus in self.corpus.corpora]
        if isinstance(self.tokenizer, Bpe):
            shared = TokenizerFile(path=(first.base or first).shard_name, eos="<eos>")
            others = [replace(other, tokenizer=shared) for other in others]
        return [first, *others]

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each corpus."""
        return self.corpus.weights if isinstance(self.corpus, Mixture) else (1.0,)

    @property
    def dataset(self) -> Dataset | None:
        """The data set that the corpus is, or of which it is a preset."""
        corpus = self.corpus.dataset if isinstance(self.corpus, Slimpajama) else self.corpus
        return corpus if isinstance(corpus, Dataset) else None

    @property
    def is_generated(self) -> bool:
        """Whether the corpus is generated, without any download."""
        return isinstance(self.corpus, Synthetic | Stdlib)

    @property
    def sample_documents(self) -> int:
        """Documents that a BPE is trained on, the first ones; the standard library's are short."""
        return 8000 if isinstance(self.corpus, Stdlib) else 3000

    @property
    def base(self) -> DataConfig | None:
        """The corpus that upsampled shards are derived from."""
        return None if self.upsample is None else replace(self, upsample=None)

    def shard_identity(self) -> dict[str, object]:
        """The settings that determine the shards; two runs with the same identity share them."""
        identity = asdict(self)
        if self.base is not None:
            # the version rises with every change to the copies that upsampling makes
            return {"base": self.base.shard_identity(), "upsample": identity["upsample"], "version": 2}
        # without window and mode: shards contain whole documents, and serve all of them
        identity = {name: identity[name] for name in ("held_out_frac", "tags", "corpus", "tokenizer")}
        if isinstance(self.tokenizer, Bpe):
            identity["tokenizer"]["sample_documents"] = self.sample_documents
        if isinstance(self.corpus, Synthetic):
            identity["wording"] = example()  # the texts that documents contain: other wordings make other shards
            identity["version"] = 1  # raised with every change to generated documents
        if self.corpus.plugin:
            identity["plugin"] = self.corpus.plugin
        return identity

    @property
    def shard_name(self) -> str:
        name = self.corpus.name
        if self.upsample is not None:
            name += "-upsampled"
        return f"{name}-{hash_json(self.shard_identity())[:10]}"
