#!/usr/bin/env bash
# The 1.3B runs on 2 nodes of 8 A100:  sbatch configs/slurm_tiny.sh configs/tiny_2k.yaml
# A job that runs out of time is warned 10 minutes before, saves, and goes on when the same line is submitted again:
# the step that runs takes 10 s (4.2M tokens at 0.41M a second), or one length of a probe up to 2 minutes; saving 18 GB
# takes 3 minutes at 0.1 GB a second.
#SBATCH --job-name=probe-lab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=2-00:00:00
#SBATCH --signal=USR1@600
#SBATCH --open-mode=append
set -euo pipefail
# srun does not take sbatch's cpus per task over (SLURM 22.05 and later), nor end the others when a task fails
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    .venv/bin/python -m lab.fit "${1:-configs/tiny_2k.yaml}" --resume "${@:2}"
