"""Data sets of the Hugging Face hub: files are listed once, then downloaded one at a time, read and deleted.

The client waits where the hub answers 429 (too many requests), and repeats what a lost connection has cut off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import DataError, first_line


def list_hub(repository: str) -> dict[str, int]:
    """List the files of a data set: COMMIT/PATH, where its main branch is at that commit, and bytes.

    Raises: DataError.
    """
    from huggingface_hub import HfApi, RepoFile

    api = HfApi()
    try:
        commit = api.dataset_info(repository, expand=["sha"]).sha
        tree = api.list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
        return {f"{commit}/{file.path}": file.size for file in tree if isinstance(file, RepoFile)}
    except Exception as error:  # the library raises many types for this one fault
        rule = f"cannot be listed on the hub ({type(error).__name__}: {first_line(error)})"
        remedy = "name a mirror, check the network, or give data.corpus.path, a folder of its files"
        raise DataError(f"data.corpus.repository={repository}: {rule}; {remedy}") from error


@contextmanager
def downloaded(repository: str, name: str) -> Iterator[Path]:
    """Download a listed file for the body.

    Raises: DataError.
    """
    from huggingface_hub import hf_hub_download

    commit, _, path = name.partition("/")
    with tempfile.TemporaryDirectory(prefix="probe-lab-") as place:
        try:
            file = hf_hub_download(repository, path, repo_type="dataset", revision=commit, local_dir=place)
        except Exception as error:  # as many
            rule = f"{path} cannot be downloaded ({type(error).__name__}: {first_line(error)})"
            remedy = "run the same command again, which skips finished tasks"
            raise DataError(f"data.corpus.repository={repository}: {rule}; {remedy}") from error
        yield Path(file)
