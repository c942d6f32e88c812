#!/usr/bin/env bash
# The 1.3B runs on 2 nodes of 8 A100, 28 days in jobs of 2 days: 14 for the training alone, and two more for starts,
# probes, saves and what a stop leaves unused. SBATCH_ACCOUNT and SBATCH_PARTITION name yours:
#     for job in $(seq 16); do sbatch --job-name=tiny_2k configs/slurm_tiny.sh configs/tiny_2k.yaml; done
# A job that runs out of time is warned 10 minutes before, and saves. The next one of the same name then continues; after
# the end of the training it exits with 0. The step that runs takes 10 s (4.2M tokens at 0.41M a second), or one length
# of a probe up to 2 minutes; saving 18 GB takes 3 minutes at 0.1 GB a second.
#SBATCH --job-name=probe-lab
#SBATCH --dependency=singleton
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=2-00:00:00
#SBATCH --signal=USR1@600
#SBATCH --open-mode=append
set -euo pipefail
trap : USR1 # some clusters warn this shell too, which must outlive the step; the step itself gets its own warning
# Clusters with environment modules: module load gcc cuda, here. Compiled blocks need a C compiler on every node.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600 # s that torchrun gives the ranks to save
export NCCL_DEBUG=WARN PYTHONFAULTHANDLER=1 # errors of NCCL, and the stack of a process that crashes, in the output
# Nodes with several networks: export GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME, the one between them.
# The endpoint is the first node's own name. torchrun does not recognize its host by an address.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun does not take sbatch's cpus per task over (SLURM 22.05 and later), nor end the others when a task fails.
# torchrun overwrites TORCHELASTIC_SIGNALS_TO_HANDLE by its option.
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    .venv/bin/python -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-8}" \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$((29500 + SLURM_JOB_ID % 1000))" \
    --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    -m lab.fit "${1:-configs/tiny_2k.yaml}" --resume "${@:2}"
