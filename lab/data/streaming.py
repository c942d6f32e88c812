"""Data sets of the hub, and local folders of tables, listed and streamed by the `datasets` library.

A data set is listed once, at one commit. Each task then streams files of its own, whose names and sizes are known, so
that no task asks the hub for a listing. The library and its client wait where the hub answers 429 (too many requests),
and continue where a connection is lost.
"""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from lab.command import show
from lab.data import text_files
from lab.data.chat import Row
from lab.data.config import Dataset
from lab.errors import DataError, MissingPackage
from lab.files import read_object

HUB_FILE = re.compile(r"hf://datasets/(?P<repository>.+?)@(?P<commit>[^/]+)/(?P<path>.+)")
BLOCK_BYTES = 2**25  # of one request for a part of a file
LONGEST_ERROR = 300  # characters of what the library says, which lists the names to choose from
SAVE_AGAIN = "save the data set again"
UNLISTED = ("name", "version", "data_dir", "data_files", "description", "features")  # of a builder's options
TEMPORARY = (408, 429, 500, 502, 503, 504)  # of HTTP
MOST_TRIES = 6
OTHER_SPLITS = "of other splits"
CSV = {"na_filter": False}  # a text "NA" or "null" is a text


@dataclass(frozen=True)
class Listing:
    """The files of a corpus: name and bytes of each, how many are skipped by type, and what reads them.

    `module` names a builder of the library and `options` its settings; both are empty for files that the lab reads.
    A name of the hub is COMMIT/PATH.
    """

    files: dict[str, int]
    skipped: Counter[str] = field(default_factory=Counter)
    module: str = ""
    options: dict[str, Any] = field(default_factory=dict)


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
    """List the files of a data set's split, on the hub or in a folder.

    Raises: DataError.
    """
    if corpus.path is None:
        return list_split(corpus, f"hf://datasets/{corpus.repository}")[0]
    root, pattern = text_files.root_of(corpus.path), None
    if root.is_file():
        root, pattern = root.parent, root.name
    elif root != Path(corpus.path):
        pattern = str(Path(corpus.path).relative_to(root))
    if not root.is_dir():
        raise DataError(f"data.corpus.path={corpus.path}: no such file or folder; name a folder of tables")
    saved = None if pattern else list_saved(corpus, root)
    listing, others = saved or list_split(corpus, str(root.resolve()), pattern)
    every, hidden = text_files.find_files(Path(corpus.path), ("",))
    unread = [path for path in every if str(path.relative_to(root)) not in {*listing.files, *others}]
    listing.skipped.update(hidden)
    listing.skipped.update(map(text_files.type_of, unread))
    return listing


def list_split(corpus: Dataset, place: str, pattern: str | None = None) -> tuple[Listing, list[str]]:
    """List the files of a split by the library, and the names of those of other splits; they are counted as skipped.

    Raises: DataError.
    """
    datasets = import_datasets()
    from huggingface_hub import HfFileSystem

    builder = open_builder(corpus, place, pattern)
    found = {str(split): sorted(set(urls)) for split, urls in builder.config.data_files.items()}
    check_split(corpus, found)
    names, sizes = {}, {}
    hub = HfFileSystem(endpoint=datasets.config.HF_ENDPOINT, token=None)  # with what the library has just listed
    for split, urls in found.items():
        for url in urls:
            match = HUB_FILE.fullmatch(url)
            name = f"{match['commit']}/{match['path']}" if match else str(Path(url).relative_to(place))
            names[name] = split
            if split == corpus.split:
                sizes[name] = hub.info(url)["size"] if match else Path(url).stat().st_size
    others = [name for name, split in names.items() if split != corpus.split and name not in sizes]
    module = type(builder).__module__.rpartition(".")[2]
    options = (CSV if module == "csv" else {}) | options_of(builder.config)
    return Listing(sizes, Counter({OTHER_SPLITS: len(others)}), module, options), others


def open_builder(corpus: Dataset, place: str, pattern: str | None) -> Any:
    """Have the library find what a data set consists of, again after a temporary error, which its client passes on.

    Raises: DataError.
    """
    datasets = import_datasets()
    tries = 0
    while True:
        tries += 1
        try:
            with tempfile.TemporaryDirectory(prefix="probe-lab-") as cache:
                return datasets.load_dataset_builder(place, corpus.config, data_files=pattern, cache_dir=cache)
        except Exception as error:  # the library raises many types for a name, a network or a file that is wrong
            wait_s = retry_delay_s(error, tries)
            if wait_s is None or tries == MOST_TRIES:
                remedy = "set data.corpus.config to one of its configurations, correct the name, or check the network"
                raise DataError(f"{setting_of(corpus)}: cannot be listed ({one_line(error)}); {remedy}") from error
            show(f"data: {setting_of(corpus)}: {one_line(error)}; trying again in {wait_s} s", error=True)
        time.sleep(wait_s)


def retry_delay_s(error: BaseException, tries: int) -> int | None:
    """Return how long to wait after a lost connection or a busy server; None if the error will not pass."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    utils: Any = huggingface_hub.utils
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HfHubHTTPError) and cause.response.status_code in TEMPORARY:
            headers = cause.response.headers
            limit, after = utils.parse_ratelimit_headers(headers), headers.get("Retry-After", "")
            if limit is not None:
                return limit.reset_in_seconds + 1
            return int(after) if after.isdigit() else 2**tries
        if isinstance(cause, utils.httpx.TransportError):
            return 2**tries
        cause = cause.__cause__ or cause.__context__
    return None


def list_saved(corpus: Dataset, root: Path) -> tuple[Listing, list[str]] | None:
    """List the files that `save_to_disk` has named in a folder; None if it has not written the folder.

    Raises: DataError.
    """
    record, folder = root / "dataset_dict.json", root
    if record.is_file():
        check_split(corpus, read_object(record, DataError, SAVE_AGAIN).get("splits", ()))
        folder = root / corpus.split
    state = folder / "state.json"
    if not state.is_file():
        return None
    entries = read_object(state, DataError, SAVE_AGAIN).get("_data_files", ())
    paths = [folder / entry["filename"] for entry in entries]
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(f"{missing[0]}: is named in state.json and missing; {SAVE_AGAIN}")
    return Listing(text_files.sizes_of(paths, root), module="arrow"), []


def check_split(corpus: Dataset, splits: Collection[str]) -> None:
    """Reject a split that the data set lacks.

    Raises: DataError.
    """
    if corpus.split not in splits:
        rule = f"no such split in {corpus.label}"
        raise DataError(f"data.corpus.split={corpus.split}: {rule}; use one of: {', '.join(splits)}")


def setting_of(corpus: Dataset) -> str:
    """Name the setting that a data set comes from, with its value."""
    name = "repository" if corpus.path is None else "path"
    return f"data.corpus.{name}={getattr(corpus, name)}"


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + '...'}"


def options_of(config: Any) -> dict[str, Any]:
    """Return the settings of a builder that differ from their defaults, such as the separator of a table."""
    options = {}
    for item in fields(config):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        value = getattr(config, item.name)
        if item.name not in UNLISTED and value != default:
            options[item.name] = value
    return options


def stream_rows(corpus: Dataset, listing: Listing, name: str) -> Iterator[Row]:
    """Stream the rows of one listed file, of each the columns that the corpus's settings name.

    Raises: DataError.
    """
    wanted = {str(column).partition(".")[0] for column in (corpus.text, corpus.source)}
    for table in stream_tables(corpus, listing, name):
        columns = table.column_names
        if corpus.text.partition(".")[0] not in columns:
            rule = f"no such column in {name}"
            raise DataError(f"data.corpus.text={corpus.text}: {rule}; use one of: {', '.join(columns)}")
        yield from table.select([column for column in columns if column in wanted]).to_pylist()


def stream_tables(corpus: Dataset, listing: Listing, name: str) -> Iterator[Any]:
    """Stream one listed file as tables of Arrow.

    Raises: DataError.
    """
    datasets = import_datasets()
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.load import import_main_class

    with tempfile.TemporaryDirectory(prefix="probe-lab-") as cache:
        try:
            url, storage = locate(corpus, listing, name)
            files = DataFilesDict({"train": DataFilesList([url], [])})  # an exact name, so that nothing is looked up
            builder_class = import_main_class(f"datasets.packaged_modules.{listing.module}.{listing.module}")
            builder = builder_class(cache_dir=cache, data_files=files, storage_options=storage, **listing.options)
            stream = builder.as_streaming_dataset("train").with_format("arrow")
            yield from stream.iter(datasets.config.DEFAULT_MAX_BATCH_SIZE)
        except Exception as error:  # as many
            remedy = "correct the file, or download it again"
            if corpus.path is None:
                remedy = "run the same command again, which skips finished tasks"
            raise DataError(f"{setting_of(corpus)}: {name} cannot be read ({one_line(error)}); {remedy}") from error


def locate(corpus: Dataset, listing: Listing, name: str) -> tuple[str, dict[str, Any]]:
    """Return the address of a listed file, and the options of the file system that reads it."""
    if corpus.path is not None:
        root = text_files.root_of(corpus.path).resolve()
        path = (root.parent if root.is_file() else root) / name
        text_files.check_whole(path)
        return str(path), {}
    from datasets import config
    from huggingface_hub.hf_file_system import HfFileSystem, make_instance

    commit, _, path_in_repository = name.partition("/")
    repository = f"datasets/{corpus.repository}@{commit}"
    address = f"{repository}/{path_in_repository}"
    # the client lists the folder of each file that it opens, unless it knows the size; this is how its copies in other
    # processes, which the same options select, come to know what another has listed
    entry = {"name": address, "size": listing.files[name], "type": "file"}
    exists = {("dataset", corpus.repository, commit): (True, None)}
    state = {"dircache": {address.rpartition("/")[0]: [entry]}, "_repo_and_revision_exists_cache": exists}
    options = {"block_size": BLOCK_BYTES}
    make: Any = make_instance
    make(HfFileSystem, (), {"endpoint": config.HF_ENDPOINT, "token": None, **options}, state)
    return f"hf://{address}", {"hf": options}
