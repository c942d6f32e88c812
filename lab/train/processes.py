"""The processes of a run in Lightning and torch: their ranks by the launcher found, and what they share."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import distributed

from lab.launch import Launch
from lab.model.sharding import accumulating

FIRST_PORT, PORTS = 15000, 10000  # the last digits of a SLURM job's number select its port


class Tasks(ClusterEnvironment):
    """The tasks of one step of srun.

    Lightning's own environment reads the job's ranks instead of the step's, refuses `srun --ntasks` and ignores
    jobs named bash or interactive.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    @property
    def creates_processes_externally(self) -> bool:
        """All tasks have been started by srun."""
        return True

    @property
    def main_address(self) -> str:
        """The first node of the step."""
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST", "127.0.0.1")
        return os.environ.get("MASTER_ADDR") or SLURMEnvironment.resolve_root_node_address(nodes)

    @property
    def main_port(self) -> int:
        """A port that all tasks compute from the job's number."""
        job = int(os.environ.get("SLURM_JOB_ID", "0"))
        return int(os.environ.get("MASTER_PORT") or FIRST_PORT + job % PORTS)

    @staticmethod
    def detect() -> bool:
        """Return False: the launch is known."""
        return False

    def world_size(self) -> int:
        """Count the tasks."""
        return self.launch.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: srun has set it."""

    def global_rank(self) -> int:
        """Return the number of this task among all."""
        return self.launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: srun has set it."""

    def local_rank(self) -> int:
        """Return the number of this task on its node."""
        return self.launch.local_rank

    def node_rank(self) -> int:
        """Return the number of the node."""
        return self.launch.node


def cluster_environment(launch: Launch) -> ClusterEnvironment:
    """Build the environment that Lightning reads ranks from."""
    if launch.by == "srun":
        return Tasks(launch)
    return TorchElasticEnvironment() if launch.by == "torchrun" else LightningEnvironment()


class FullySharded(ModelParallelStrategy):
    """FSDP2, which the module applies to its decoder, on a mesh of all ranks."""

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Run a micro-batch that no step follows; Lightning's own blocks the synchronisation of DDP only."""
        module: Any = self.lightning_module
        with accumulating(module.decoder) if module.sharding.whole else nullcontext():
            yield


def make_strategy(strategy: str, world_size: int, device: torch.device) -> Strategy | str:
    """Build Lightning's strategy, with gloo between processes on CPUs."""
    group = "nccl" if device.type == "cuda" else "gloo"
    if strategy == "fsdp":
        return FullySharded(data_parallel_size=world_size, tensor_parallel_size=1, process_group_backend=group)
    return DDPStrategy(process_group_backend=group, gradient_as_bucket_view=True) if strategy == "ddp" else "auto"


def meet_again(launch: Launch, backend: str) -> None:
    """Form the process group of ranks that torchrun has started again, which otherwise Lightning forms.

    torchrun's node 0 keeps one store over its restarts, and torch puts the ranks' addresses under the same keys in it
    each time, so that ranks may read those of processes that have ended. Here every start has keys of its own.

    Source: torch.distributed.elastic.rendezvous.dynamic_rendezvous, next_rendezvous; torch.distributed.rendezvous,
    _create_c10d_store.
    """
    if not launch.restarts or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    kept = distributed.TCPStore(address, port, launch.world_size, is_master=False)  # type: ignore[attr-defined]
    store = distributed.PrefixStore(f"restart{launch.restarts}", kept)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world_size)
    if backend == "nccl":
        atexit.register(distributed.destroy_process_group)
