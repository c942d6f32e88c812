"""Data sets of the hub, and local folders of tables, listed and streamed by the `datasets` library.

A data set is listed once, at one commit. Each task then streams files of its own, whose names and sizes are known, so
that no task asks the hub for a listing. If the hub answers 429 (too many requests) to a task, the library and its
client wait; they continue after a lost connection.
"""

import io
import json
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from glob import has_magic
from itertools import chain
from pathlib import Path
from typing import Any

from lab.core.errors import DataError, LabError, MissingPackage
from lab.core.files import read_object
from lab.core.types import Row
from lab.data.config import Dataset
from lab.data.text_files import Listing, Options, find_files, find_root, open_decompressed, parse_object, type_of

BLOCK_BYTES = 2**25  # of one request for a part of a file


def import_datasets() -> Any:
    """Import the library, without its progress bars and its reports of errors, which the lab reports in one line.

    Raises: MissingPackage.
    """
    try:
        import datasets
        import zstandard  # noqa: F401 - which the library lacks if it reads .zst files
    except ImportError as error:
        raise MissingPackage(str(error.name), "data sets of the hub and local tables", "data") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def list_dataset(corpus: Dataset) -> Listing:
    """List the files of a data set's split, on the hub or in a folder, and count the others.

    Raises: DataError.
    """
    root, found, skipped = None, list[Path](), Counter[str]()
    if corpus.path is not None:
        root = find_folder(corpus.path)
        found, skipped = find_files(Path(corpus.path), ("",))
    builder = open_builder(corpus)
    from datasets.utils.file_utils import xgetsize

    splits: dict[str, dict[str, str]] = {}  # the address of each file
    for split, urls in builder.config.data_files.items():
        splits[str(split)] = {name_file(url, root): url for url in sorted(urls)}
    if not splits.get(corpus.split):
        raise DataError(
            f"data.corpus.split={corpus.split}: no such split in {corpus.label}; use one of: {', '.join(splits)}"
        )
    # the client of the hub has kept the sizes of its listing
    sizes = {name: xgetsize(url) for name, url in splits[corpus.split].items()}
    listed = set().union(*splits.values())
    skipped["of other splits"] = len(listed - sizes.keys())
    skipped.update(type_of(file) for file in found if str(file.relative_to(str(root))) not in listed)
    module = type(builder).__module__.rpartition(".")[2]
    no_options = ("name", "version", "data_dir", "data_files", "description", "features")
    options = {name: value for name, value in vars(builder.config).items() if name not in no_options}
    if options.get("encoding") == "utf-8":
        options["encoding"] = "utf-8-sig"  # a byte order mark is no text
    return Listing(sizes, skipped, root, module, options)


def name_file(url: str, root: Path | None) -> str:
    """Return the name of a listed file: COMMIT/PATH on the hub, or a path below the folder `root`."""
    if root is not None:
        return str(Path(url).relative_to(root.resolve()))
    return url.partition("@")[2]  # of hf://datasets/OWNER/NAME@COMMIT/PATH


def find_folder(path: str) -> Path:
    """Return the folder that the names of local files begin at."""
    root = find_root(path)
    return root.parent if root.is_file() else root


def open_builder(corpus: Dataset) -> Any:
    """Let the library find the files of a data set.

    Raises: DataError.
    """
    datasets = import_datasets()
    source, data_files = find_source(corpus)
    try:
        # the library wants a folder for a cache, of which streaming needs nothing afterwards
        with tempfile.TemporaryDirectory(prefix="probe-lab-") as cache:
            return datasets.load_dataset_builder(source, corpus.config, data_files=data_files, cache_dir=cache)
    except Exception as error:  # the library raises many types for a wrong name or file, or a network
        fix = "set data.corpus.config to one of its configurations, correct the name, or check the network"
        raise make_error(corpus, "cannot be listed", error, fix) from error


def find_source(corpus: Dataset) -> tuple[str, Any]:
    """Return the folder or builder that the library loads, and its files if the library cannot find them itself.

    Raises: DataError.
    """
    if corpus.path is None:
        return f"hf://datasets/{corpus.repository}", None
    folder = find_folder(corpus.path)
    if has_magic(str(find_root(corpus.path).resolve())):
        raise DataError(
            f"data.corpus.path={corpus.path}: the datasets library takes *, ? or [ in the name of a file or folder for "
            "a pattern; rename it"
        )
    if not folder.is_dir():
        raise DataError(f"data.corpus.path={corpus.path}: no such file or folder; name a folder of tables")
    if folder != Path(corpus.path):
        return str(folder.resolve()), str(Path(corpus.path).relative_to(folder))
    for saved in (folder / corpus.split, folder):  # save_to_disk writes a folder for each split, or only one split
        if (state := saved / "state.json").exists():
            # the state names the files in use: other .arrow files are left from earlier states
            entries = read_object(state, DataError, "save the data set again")["_data_files"]
            return "arrow", {corpus.split: [str(saved.resolve() / entry["filename"]) for entry in entries]}
    return str(folder.resolve()), None


def make_error(corpus: Dataset, rule: str, error: BaseException, fix: str) -> DataError:
    setting = f"repository={corpus.repository}" if corpus.path is None else f"path={corpus.path}"
    reason = textwrap.shorten(str(error), 300)  # the library may list all names to choose from
    return DataError(f"data.corpus.{setting}: {rule} ({type(error).__name__}: {reason}); {fix}")


def stream_rows(corpus: Dataset, listing: Listing, name: str) -> Iterator[Row | str]:
    """Stream the rows of one listed file; a string is the reason why a line is no row.

    Raises: DataError.
    """
    try:
        url, storage = locate(corpus, listing, name)
        if listing.module == "json":
            yield from stream_objects(url, storage, listing.options)
        else:
            yield from stream_tables(corpus, listing, url, storage)
    except LabError:
        raise
    except Exception as error:  # the library raises many types for a file that is wrong or not reachable
        rule, fix = f"{name} cannot be read", "correct the file, see its permissions, or download it again"
        if isinstance(error, Warning):
            rule = f"the first row of {name} has more fields than its header"
        if corpus.path is None:
            fix = "run the same command again, which skips finished tasks"
        raise make_error(corpus, rule, error, fix) from error


def stream_objects(url: str, storage: Options, options: Options) -> Iterator[Row | str]:
    """Stream a file of JSON: an object in each line, or one value in several lines, or a list of objects or texts.

    `options` has the card's `encoding`, and `field`, the key of the rows in a file that is one object. The library
    would change the texts of a column that has other values, too, or only texts that look like dates.
    """
    datasets = import_datasets()
    config = datasets.DownloadConfig(storage_options=storage)
    manager = datasets.StreamingDownloadManager(download_config=config)
    for path in manager.iter_files(manager.extract(url)):
        with datasets.utils.file_utils.xopen(path, "rb", download_config=config) as opened:
            # bytes that are not of the encoding become lone surrogates, by which `parse_object` and `is_text` find them
            file = io.TextIOWrapper(io.BufferedReader(opened), options["encoding"], "surrogateescape")
            lines = filter(str.strip, file)
            first, field = next(lines, "[]"), options["field"]
            if field or first.lstrip().startswith(("[", "{\n")):
                rows = json.loads(first + file.read())
                if field:
                    rows = rows[field]
                for row in rows if isinstance(rows, list) else [rows]:
                    yield row if isinstance(row, dict) else {"text": row}
            else:
                for line in chain([first], lines):
                    yield parse_object(line.encode(errors="surrogateescape"))


def stream_tables(corpus: Dataset, listing: Listing, url: str, storage: Options) -> Iterator[Row]:
    """Stream a file by the library's reader of its type, with the columns that the corpus's settings name."""
    datasets = import_datasets()
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.load import import_main_class

    options = listing.options
    columns = [column for column in (corpus.text, corpus.source) if column is not None]
    if listing.module == "csv":
        # The library would convert a batch of numbers alone, "007" to 7, and "NA" to no text. pandas would
        # take the first column for an index if rows have a field more.
        options = {
            **options,
            "converters": dict.fromkeys(columns, str),
            "na_filter": False,
            "index_col": options["index_col"] or False,
        }
    wanted = {column.partition(".")[0] for column in columns}
    with tempfile.TemporaryDirectory(prefix="probe-lab-") as cache, warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of header")  # by which pandas drops what is beyond the header
        # an exact name in place of a pattern, which the library would resolve by another listing
        files = DataFilesDict({"train": DataFilesList([url], [])})
        builder_class = import_main_class(f"datasets.packaged_modules.{listing.module}.{listing.module}")
        builder = builder_class(cache_dir=cache, data_files=files, storage_options=storage, **options)
        stream = builder.as_streaming_dataset("train").with_format("arrow")
        for table in stream.iter(datasets.config.DEFAULT_MAX_BATCH_SIZE):
            chosen = table.select([column for column in table.column_names if column in wanted])
            features = datasets.Features.from_arrow_schema(chosen.schema)
            for row in chosen.to_pylist():
                yield dict.fromkeys(table.column_names) | features.decode_example(row)


def locate(corpus: Dataset, listing: Listing, name: str) -> tuple[str, Options]:
    """Return the address of a listed file, and the options of the file system that reads it."""
    if listing.root is not None:
        path = listing.root.resolve() / name
        with open_decompressed(path) as file:  # rejects one that cannot be opened
            # The library ends a truncated file without an error. To decompress it once before takes 0.1% of a task:
            # 0.007 of 6.2 s of CPU time for 9 MB of text and a BPE of 8,192 tokens.
            while path.suffix.lower() == ".zst" and file.read(BLOCK_BYTES):
                pass
        return str(path), {}
    from datasets import config
    from huggingface_hub.hf_file_system import HfFileSystem, make_instance

    commit = name.partition("/")[0]
    address = f"datasets/{corpus.repository}@{name}"
    # The client lists the folder of each file that it opens, unless its cache has the file's size. The library makes
    # copies of the client in other processes by these options, and this call gives them a cache with the listed size.
    entry = {"name": address, "size": listing.files[name], "type": "file"}
    exists = {("dataset", corpus.repository, commit): (True, None)}
    state = {"dircache": {address.rpartition("/")[0]: [entry]}, "_repo_and_revision_exists_cache": exists}
    options = {"block_size": BLOCK_BYTES}
    make: Any = make_instance
    make(HfFileSystem, (), {"endpoint": config.HF_ENDPOINT, "token": None, **options}, state)
    return f"hf://{address}", {"hf": options}
