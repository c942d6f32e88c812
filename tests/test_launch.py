"""The rank of a process by torchrun's variables; what does not fit is refused before anything waits."""

import os
import shutil
import subprocess
from unittest.mock import patch

import pytest

from lab.core.errors import ConfigError
from lab.core.launch import Launch, find_launch, needs_torchrun, order_by_cause
from tests.forked import LIMIT_S, ROOT
from tests.refusals import refused

# The fourth worker of torchrun on the second of two nodes.
WORKER = {"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
MPI = ("OMPI_COMM_WORLD", "MV2_COMM_WORLD", "PMI", "JSM_NAMESPACE", "FLUX_JOB")


def called(find, variables, devices, nodes):
    with patch.dict("os.environ", variables):
        return find(devices, nodes)


def test_the_rank_is_that_of_torchrun_also_in_a_step_of_slurm():
    assert called(find_launch, WORKER | STEP, 2, 2) == Launch(3, 1, 4, 2, by_torchrun=True)
    assert called(find_launch, {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, 1, 1) == Launch()
    assert not called(needs_torchrun, WORKER | STEP, 2, 2)
    assert not called(needs_torchrun, {}, 1, 1)
    assert called(needs_torchrun, {"OMPI_COMM_WORLD_SIZE": "1"}, 2, 1), "torchrun is started"


@pytest.mark.parametrize(
    ("find", "variables", "devices", "nodes", "start"),
    [
        pytest.param(find_launch, WORKER, 8, 2, "train.devices*train.nodes=8*2: ", id="others"),
        pytest.param(find_launch, WORKER, 4, 1, "train.devices*train.nodes=4*1: ", id="on_other_nodes"),
        pytest.param(find_launch, WORKER | {"TORCHELASTIC_RESTART_COUNT": "1"}, 2, 2, "--max-restarts: ", id="again"),
        pytest.param(needs_torchrun, {}, 8, 2, "train.nodes=2: ", id="nodes_without_torchrun"),
        pytest.param(needs_torchrun, STEP, 8, 1, "SLURM_STEP_NUM_TASKS=8: ", id="srun"),
        *((needs_torchrun, {f"{name}_SIZE": "4"}, 4, 1, f"{name}_SIZE=4: ") for name in MPI),
    ],
)
def test_processes_that_are_not_those_of_the_config_are_refused(find, variables, devices, nodes, start):
    with refused(start, error=ConfigError):
        called(find, variables, devices, nodes)


def test_the_first_cause_is_the_rank_that_was_killed():
    assert min([1, -9], key=order_by_cause) == -9, "the first only lost the second"
    assert min([-15, 2], key=order_by_cause) == 2, "torchrun ended the first"


def test_the_batch_script_starts_one_torchrun_on_each_node(tmp_path):
    srun = "echo $TORCH_ELASTIC_SHUTDOWN_TIMEOUT $NCCL_DEBUG $PYTHONFAULTHANDLER; printf '%s\\n' \"$@\"\n"
    srun += "kill -USR1 $PPID\nexit 75"
    for name, code in (("srun", srun), ("scontrol", "echo node7")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_ID": "12", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[7-8]"}
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_GPUS_PER_NODE": "8", **slurm}
    words = ["bash", "configs/slurm_tiny.sh", "configs/tiny_4k.yaml", "--run.name=a b"]
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    variables, *given = done.stdout.splitlines()
    assert variables == "600 WARN 1"
    assert {"--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpus-per-task=8"} <= set(given)
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=node7:29512"} <= set(given)
    assert "SIGUSR1" in next(word for word in given if word.startswith("--signals-to-handle=")).split("=")[1].split(",")
    assert given[-5:] == ["-m", "lab.fit", "configs/tiny_4k.yaml", "--resume", "--run.name=a b"]
    assert done.returncode == 75, "the shell has outlived SIGUSR1"


def test_jobs_of_one_name_wait_and_the_script_names_no_account():
    script = (ROOT / "configs/slurm_tiny.sh").read_text()
    options = [line.split()[1] for line in script.splitlines() if line.startswith(("#SBATCH", "##SBATCH"))]
    assert {"--dependency=singleton", "--mem=0", "--cpus-per-task=32"} <= set(options)
    # 16 jobs of 48 h for 28 days of training, which the page starts as well
    assert all("for job in $(seq 16); do" in text for text in (script, (ROOT / "docs/training.md").read_text()))
    assert not [option for option in options if option.startswith(("--account", "--partition"))]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shell_scripts_have_no_warning():
    scripts = [*ROOT.glob("configs/*.sh"), *ROOT.glob("benchmarks/*.sh"), ROOT / ".ci/run"]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
