#!/usr/bin/env bash
# The 1.3B runs on 2 nodes of 8 A100:  sbatch configs/slurm_tiny.sh configs/tiny_2k.yaml
# A job that runs out of time is warned 5 minutes before, saves, and goes on when the same line is submitted again.
#SBATCH --job-name=probe-lab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=2-00:00:00
#SBATCH --signal=USR1@300
#SBATCH --open-mode=append
set -euo pipefail
srun .venv/bin/python -m lab.fit "${1:-configs/tiny_2k.yaml}" --resume "${@:2}"
