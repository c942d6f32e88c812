"""What the ranks of a run must have in common: each compares its own with that of the first rank, before data loads."""

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.config import Experiment
from lab.core import files, locks
from lab.core.errors import LONGEST_SHOWN, ConfigError, abbreviate
from lab.core.launch import Launch
from lab.core.plugins import LOADED
from lab.core.yaml import flatten
from lab.data.module import PackedData
from lab.data.text_files import read_texts
from lab.train.environment import ROOT, versions
from lab.train.meeting import check_network, gather, name_ranks

OF_A_MACHINE = ("train.threads", "train.devices", "train.accelerator", "plugins")
PATHS = (".path", ".folder", ".haystack", ".selection")  # last names of settings that may differ between machines
SHARED_S = 60.0  # NFS may take this long to show a new name to other nodes
SAME = "start all ranks with the same settings, code, packages and shards"


def check_ranks(experiment: Experiment, options: Mapping[str, Any], launch: Launch) -> None:
    """Reject ranks with different settings, options, plugins, packages or code, or without a connection.

    A collective call.

    Raises: ConfigError, PeerError.
    """
    compare("settings", describe_rank(experiment, options), launch)
    check_network(launch)


def describe_rank(experiment: Experiment, options: Mapping[str, Any]) -> dict[str, str]:
    """List what must be the same on all ranks, by name: settings first, files of code last."""
    record = {}
    for key, value in flatten(experiment.to_dict()).items():
        if key not in OF_A_MACHINE and not key.endswith(PATHS):
            record[key] = describe_value(value)
    for key, value in options.items():
        if isinstance(value, bool):
            record[f"--{key}"] = str(value)
    record["plugins"] = describe_value(sorted(LOADED))
    record |= versions()
    # The files themselves, not the commit: a wheel has none, and a clone may have changes that are not committed.
    for path in sorted((ROOT / "lab").rglob("*.py")):
        record[path.relative_to(ROOT).as_posix()] = digest(path.read_bytes())
    return record


def describe_value(value: Any) -> str:
    """Write a value that fits a line, so that other values never have the same text.

    Example:
        >>> long, other = [[0, 64]] * 20, [[0, 64]] * 10 + [[0, 65]] + [[0, 64]] * 9
        >>> abbreviate(long) == abbreviate(other), describe_value(long) == describe_value(other)
        (True, False)
    """
    text = json.dumps(value, default=str)
    return abbreviate(value) if len(text) <= LONGEST_SHOWN else f"{abbreviate(value)}, {digest(text.encode())}"


def digest(data: bytes) -> str:
    return f"SHA-256 {hashlib.sha256(data).hexdigest()[: files.SHOWN]}"


def compare(name: str, own: Mapping[str, str], launch: Launch) -> None:
    """Reject ranks whose entries differ from the first rank's; the line names the first entry that does.

    A rank with no entries is not compared. A collective call.

    Raises: ConfigError.
    """
    first = json.loads(gather(name, json.dumps(own) if launch.is_first else "", launch)[0])
    difference: list[Any] = []  # the number of the first entry that differs, its name and this rank's value
    for number, key in enumerate([*first, *sorted(own.keys() - first.keys())]):
        if own and own.get(key) != first.get(key):
            difference = [number, key, own.get(key, "nothing")]
            break
    # All ranks report the same line, hence each needs the differences of all. Of several, the one that is listed first
    # is named, with all ranks that have it: settings come before the code that may cause the others.
    nodes: list[str] = []
    ranks_by_difference: dict[tuple[Any, ...], list[int]] = {}
    for rank, part in enumerate(gather(f"{name}/differing", json.dumps([difference, platform.node()]), launch)):
        theirs, node = json.loads(part)
        nodes.append(node)
        if theirs:
            ranks_by_difference.setdefault(tuple(theirs), []).append(rank)
    if ranks_by_difference:
        (_, key, value), ranks = min(ranks_by_difference.items())
        rule = f"{name_ranks(*ranks)} on {nodes[ranks[0]]} must have what rank 0 on {nodes[0]} has"
        raise ConfigError(f"{key}={value}: {rule}, {first.get(key, 'nothing')}; {SAME}")


def check_shared(experiment: Experiment, launch: Launch) -> None:
    """Reject a run folder that is not the first rank's own on all ranks, or that some cannot write to.

    The first rank, which owns the folder, makes a file of a random name next to the lock. A collective call.

    Raises: ConfigError, PeerError.
    """
    if launch.world_size == 1:
        return
    path = experiment.run.path
    own = files.name_temporary(path / locks.LOCK_NAME)
    try:
        if launch.is_first:
            own.touch()
        name = gather("folder", own.name, launch)[0]
        # A file system between nodes may show a new name late: a rank that does not see it at once looks again.
        until = time.monotonic() + SHARED_S
        while not os.path.exists(path / name) and time.monotonic() < until:
            time.sleep(locks.POLL_S)
        is_shared = os.path.exists(path / name) and os.access(path, os.W_OK)
        hosts = gather("shared", "" if is_shared else platform.node(), launch)
    finally:
        if launch.is_first:
            own.unlink(missing_ok=True)
    if ranks := [rank for rank, host in enumerate(hosts) if host]:
        rule = f"{path} of {name_ranks(*ranks)} on {hosts[ranks[0]]} is not rank 0's folder, or cannot be written to"
        raise ConfigError(f"run.folder={experiment.run.folder}: {rule}; name a folder that all nodes share")


def check_data(data: PackedData, launch: Launch, *, is_resumed: bool) -> None:
    """Prepare what nodes with a folder of their own lack, and reject other shards or haystacks than the first rank's.

    The first rank has prepared its own. A resumed run has its haystack in its folder. A collective call.

    Raises: DataError, ConfigError, PeerError.
    """
    if launch.world_size == 1:
        return
    # The first rank gets here when its shards are prepared, which those of its node then read.
    gather("prepared", "", launch)
    record = {}
    if launch.local_rank == 0:
        data.prepare_data()
        for name, entry in data.list_files().items():
            record[f"data.folder/{name}"] = f"SHA-256 {entry['sha256'][: files.SHOWN]}"
        haystack = data.experiment.probe_section.haystack
        if haystack is not None and not is_resumed:
            texts = read_texts(Path(haystack), "probe.haystack")
            record["probe.haystack"] = f"text of {digest(json.dumps(texts).encode())}"
    compare("data", record, launch)
