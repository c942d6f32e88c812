"""The launcher of this process, its rank and the world size, from the environment variables that launchers set.

    torchrun    TORCHELASTIC_RUN_ID with RANK, LOCAL_RANK, WORLD_SIZE, ...; also inside a SLURM job, whose ranks are
                those of its own tasks and not of torchrun's workers
    srun        SLURM_STEP_ID with a step of several tasks, SLURM_PROCID, SLURM_LOCALID, ...; the shells of sbatch,
                salloc and `srun --pty bash` have SLURM's variables too, but no such step
    lightning   neither: Lightning starts the node's other processes, and sets LOCAL_RANK for them

Source: torch.distributed.run and srun(1), the variables they set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lab.errors import ConfigError

STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS")  # set in the tasks of a step only
BY_HAND = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")  # connect nodes that each start their own processes


@dataclass(frozen=True)
class Launch:
    """One process among those of a run."""

    by: Literal["torchrun", "srun", "lightning"]
    rank: int
    local_rank: int
    node: int
    world_size: int
    local_world_size: int
    restarts: int = 0  # how often torchrun has started the ranks again

    @property
    def is_first(self) -> bool:
        """Whether this process prepares the data, writes the files and prints."""
        return self.rank == 0

    @property
    def prints_faults(self) -> bool:
        """Whether this process prints faults: one per node, as all its processes find the same ones."""
        return self.by == "lightning" or self.local_rank == 0

    @property
    def returns_status(self) -> bool:
        """Whether a launcher reads this process's exit status; Lightning kills a run whose children return non-zero."""
        return self.by != "lightning" or self.local_rank == 0


def find_launch(environment: Mapping[str, str], devices: int, nodes: int) -> Launch:
    """Identify the launcher of this process.

    Raises: ConfigError if the number of processes started is not that of the config.
    """
    launch = read_launch(environment, devices, nodes)
    missing = [name for name in BY_HAND if name not in environment]
    if launch.by == "lightning" and nodes > 1 and missing:
        raise ConfigError(
            f"train.nodes={nodes}: several nodes need a launcher, and neither srun nor torchrun started this process; "
            f"use one of them, or set {', '.join(missing)} on each node (docs/training.md)"
        )
    wanted = devices * nodes
    if launch.world_size != wanted:
        raise ConfigError(
            f"train.devices*train.nodes={devices}*{nodes}={wanted}: {launch.by} started {launch.world_size} processes; "
            "make them equal"
        )
    if launch.local_world_size != devices:
        raise ConfigError(
            f"train.devices={devices}: {launch.by} started {launch.local_world_size} processes on this node; make them "
            "equal"
        )
    return launch


def read_launch(environment: Mapping[str, str], devices: int, nodes: int) -> Launch:
    """Identify the launcher of this process, without checking it against the config.

    Example:
        >>> read_launch({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, devices=2, nodes=1).by
        'lightning'
    """

    def number(name: str, default: int = 0) -> int:
        return int(environment.get(name, default))

    if "TORCHELASTIC_RUN_ID" in environment:
        return Launch(
            "torchrun",
            rank=number("RANK"),
            local_rank=number("LOCAL_RANK"),
            node=number("GROUP_RANK"),
            world_size=number("WORLD_SIZE", 1),
            local_world_size=number("LOCAL_WORLD_SIZE", 1),
            restarts=number("TORCHELASTIC_RESTART_COUNT"),
        )
    in_step = any(name in environment for name in STEP)
    tasks = number("SLURM_STEP_NUM_TASKS", number("SLURM_NTASKS", 1)) if in_step else 1
    if tasks > 1:
        node = number("SLURM_NODEID")
        return Launch(
            "srun",
            rank=number("SLURM_PROCID"),
            local_rank=number("SLURM_LOCALID"),
            node=node,
            world_size=tasks,
            local_world_size=tasks_on(environment, node, default=devices),
        )
    node, local_rank = number("NODE_RANK") if nodes > 1 else 0, number("LOCAL_RANK")
    return Launch("lightning", node * devices + local_rank, local_rank, node, devices * nodes, devices)


def tasks_on(environment: Mapping[str, str], node: int, default: int) -> int:
    """Count the tasks of one node of a step, which SLURM writes as `8(x2),4`.

    Example:
        >>> [tasks_on({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, node, default=1) for node in range(3)]
        [8, 8, 4]
    """
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        counts += [int(tasks)] * int(times or 1) if tasks else []
    return counts[node] if node < len(counts) else default


def own_cores(launch: Launch, environment: Mapping[str, str], cores: int) -> int:
    """Count the cores that this process does not share, of those it may run on.

    srun binds each task to separate cores by default; the processes of other launchers share all cores.

    Example:
        >>> task = Launch("srun", 0, 0, 0, 8, 8)
        >>> own_cores(task, {"SLURM_CPUS_ON_NODE": "64"}, cores=8), own_cores(task, {}, cores=64)
        (8, 8)
    """
    on_node = int(environment.get("SLURM_CPUS_ON_NODE", 0))
    is_own = launch.by == "srun" and cores * launch.local_world_size <= on_node
    return cores if is_own else max(1, cores // launch.local_world_size)
