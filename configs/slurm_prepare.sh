#!/usr/bin/env bash
# Shards on 64 machines:  sbatch --array=0-63 configs/slurm_prepare.sh configs/tiny_2k.yaml
# The same line again runs what failed or was not reached, and then what is derived (data.upsample, data.order).
#SBATCH --job-name=probe-lab-prepare
#SBATCH --cpus-per-task=32
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
exec .venv/bin/python -m lab.prepare "${1:-configs/tiny_2k.yaml}" --workers="$SLURM_CPUS_PER_TASK" \
    --task="$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN))/$SLURM_ARRAY_TASK_COUNT" "${@:2}"
