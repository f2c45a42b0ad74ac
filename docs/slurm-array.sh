#!/bin/bash
#SBATCH --job-name=attention
#SBATCH --array=1-40
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --time=02:00:00
# One run, divided among the tasks of an array: sbatch docs/slurm-array.sh BACKEND [LEVEL [SEED]]
# Each writes RESULTS/BACKEND-LEVEL-SEED-PART.jsonl (RESULTS: results); report and diff merge the parts.
# OF is how many parts the run has. An array of some of them must be told: OF=40 sbatch --array=7 ...
set -euo pipefail
backend=$1 level=${2:-standard} seed=${3:-0}
part=$SLURM_ARRAY_TASK_ID of=${OF:-$SLURM_ARRAY_TASK_COUNT}
if [ -z "${OF:-}" ] && [ "$SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX" != "1-$of" ]; then
    echo "this array does not have the parts 1 to $of; say of how many they are: OF=40 sbatch ..." >&2
    exit 2
fi
# -n 1: a cell that kills its process is one crash, and the part goes on.
exec python -m pytest -q -n 1 suite --backend="$backend" --level="$level" --seed="$seed" \
    --shard="$part/$of" --results="${RESULTS:-results}/$backend-$level-$seed-$part.jsonl"
