"""Who started a process, by the variables that launchers set; what does not fit is refused before anything waits."""

import os
import re
import subprocess

import pytest
import torch
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed

from lab.errors import ConfigError
from lab.launch import Launch, find_launch, own_cores, read_launch
from lab.train.processes import cluster_environment
from lab.train.threads import set_threads
from tests.forked import ROOT
from tests.launching import SBATCH, task
from tests.refusals import check_faults

WORKER = {  # the fourth worker of torchrun on the second of two nodes
    "TORCHELASTIC_RUN_ID": "a",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
}
BY_HAND = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "NODE_RANK": "1"}
TWO_NODES = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
}
INTERACTIVE = {**SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_NAME": "interactive"}


LAUNCHES = {
    "nothing": ({}, 2, 1, Launch("lightning", 0, 0, 0, 2, 2)),
    "child_of_lightning": ({"LOCAL_RANK": "1"}, 2, 1, Launch("lightning", 1, 1, 0, 2, 2)),
    "nodes_by_hand": ({**BY_HAND, "LOCAL_RANK": "1"}, 2, 2, Launch("lightning", 3, 1, 1, 4, 2)),
    "torchrun": (WORKER, 2, 2, Launch("torchrun", 3, 1, 1, 4, 2)),
    "torchrun_in_a_batch_script": ({**SBATCH, **WORKER}, 2, 2, Launch("torchrun", 3, 1, 1, 4, 2)),
    "torchrun_in_a_step": ({**task(0, 8), **WORKER}, 2, 2, Launch("torchrun", 3, 1, 1, 4, 2)),
    "batch_script": (SBATCH, 2, 1, Launch("lightning", 0, 0, 0, 2, 2)),
    "no_srun_in_a_job": ({**SBATCH, "SLURM_NTASKS": "8"}, 2, 1, Launch("lightning", 0, 0, 0, 2, 2)),
    "interactive_shell": (INTERACTIVE, 8, 1, Launch("lightning", 0, 0, 0, 8, 8)),
    "srun": (task(1, 2), 2, 1, Launch("srun", 1, 1, 0, 2, 2)),
    "srun_on_two_nodes": ({**task(1, 2), **TWO_NODES}, 2, 2, Launch("srun", 3, 1, 1, 4, 2)),
    "srun_in_a_job_named_bash": ({**task(1, 2), "SLURM_JOB_NAME": "bash"}, 2, 1, Launch("srun", 1, 1, 0, 2, 2)),
}
REFUSED = {
    "two_nodes_without": ({}, 8, 2, "train.nodes=2: {srun torchrun MASTER_ADDR}"),
    "two_nodes_without_srun": (SBATCH, 8, 2, "train.nodes=2: {srun}"),
    "two_nodes_from_a_shell": (INTERACTIVE, 8, 2, "train.nodes=2: {srun}"),
    "torchrun_of_others": (WORKER, 8, 2, "train.devices*train.nodes=8*2=16: {torchrun 4}"),
    "torchrun_on_other_nodes": (WORKER, 4, 1, "train.devices=4: {torchrun 2}"),
    "srun_of_others": (task(0, 2), 8, 1, "train.devices*train.nodes=8*1=8: {srun 2}"),
    "srun_on_other_nodes": ({**task(1, 2), **TWO_NODES}, 4, 1, "train.devices=4: {srun 2}"),
}


@pytest.mark.parametrize(("variables", "devices", "nodes", "launch"), LAUNCHES.values(), ids=LAUNCHES)
def test_the_launcher_and_the_rank(variables, devices, nodes, launch):
    assert find_launch(variables, devices, nodes) == launch
    assert launch.is_first == (launch.rank == 0)


@pytest.mark.parametrize(("variables", "devices", "nodes", "rule"), REFUSED.values(), ids=REFUSED)
def test_processes_that_are_not_those_of_the_config_are_refused(variables, devices, nodes, rule):
    with pytest.raises(ConfigError) as caught:
        find_launch(variables, devices, nodes)
    start, _, words = rule.rstrip("}").partition("{")
    check_faults([str(caught.value)], [start])
    assert set(words.split()) <= set(re.findall(r"\w+", str(caught.value)))


def test_each_node_speaks_once_and_lightnings_children_too():
    started = [read_launch({**WORKER, "LOCAL_RANK": str(n)}, 2, 2) for n in range(2)]
    assert [launch.prints_faults for launch in started] == [True, False]
    children = [read_launch({"LOCAL_RANK": str(n)}, 2, 1) for n in range(2)]  # they start when the first has checked
    assert [launch.prints_faults for launch in children] == [True, True]


def test_lightning_is_given_the_ranks_of_the_step(monkeypatch):
    variables = {**task(1, 2), **TWO_NODES, "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4021234"}
    variables.pop("MASTER_PORT")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = cluster_environment(find_launch(variables, 2, 2))
    assert (found.global_rank(), found.local_rank(), found.node_rank(), found.world_size()) == (3, 1, 1, 4)
    assert (found.main_address, found.main_port) == ("gpu07", 15000 + 1234)
    assert found.creates_processes_externally


@pytest.mark.parametrize(
    ("by", "on_node", "cores", "own"),
    [
        pytest.param("srun", "64", 8, 8, id="bound_tasks"),
        pytest.param("srun", "64", 64, 8, id="tasks_that_share"),
        pytest.param("torchrun", "64", 64, 8, id="workers_share"),
        pytest.param("lightning", "64", 8, 1, id="children_share"),
    ],
)
def test_cores_are_divided_only_where_they_are_shared(by, on_node, cores, own):
    assert own_cores(Launch(by, 0, 0, 0, 8, 8), {"SLURM_CPUS_ON_NODE": on_node}, cores) == own


def test_lightning_leaves_the_threads_as_they_were_set(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")
    try:
        assert set_threads(3, Launch("lightning", 0, 0, 0, 2, 2)) == 3
        _set_num_threads_if_needed(num_processes=2)  # its launcher's call, as each process of DDP begins
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_batch_script_gives_srun_its_cores_and_lets_no_task_wait_for_a_failed_one(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 75\n")
    srun.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "8"}
    words = ["bash", "configs/slurm_tiny.sh", "configs/tiny_4k.yaml", "--run.name=a b"]
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=60)
    python = [".venv/bin/python", "-m", "lab.fit", "configs/tiny_4k.yaml", "--resume", "--run.name=a b"]
    assert done.stdout.splitlines() == ["--cpus-per-task=8", "--kill-on-bad-exit=1", *python]
    assert done.returncode == 75
