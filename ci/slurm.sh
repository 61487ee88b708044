#!/usr/bin/env bash
# Measure the nodes of a Slurm job at the same time and judge them: new nodes against the floors of their GPUs, old ones
# against an earlier job; five or more comparable GPUs against each other as well.
#
#   sbatch --nodes=4 ci/slurm.sh                                  # floors: accept four nodes
#   sbatch --nodes=4 ci/slurm.sh --baseline gpubench-runs/1234    # against the nodes of an earlier job
#
# Words go to `gpubench fleet judge`; without any, `--floor` does. `gpubench` has to be on the PATH of the batch node, or
# named by GPUBENCH, and its environment on a path that all nodes have. The run files, fleet.json, JUnit XML and Markdown
# go into gpubench-runs/JOB/, below the folder that the job was sent from, which all nodes must share. Ends with the
# status of the judgement: 1 if something is slow; 4 if this cannot be judged, or a node has not answered.
#
#SBATCH --job-name=gpubench-fleet
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=00:30:00
#SBATCH --output=gpubench-%j.log

set -euo pipefail

gpubench=${GPUBENCH:-gpubench}
folder=gpubench-runs/${SLURM_JOB_ID:?this is a script for sbatch}
[ $# -gt 0 ] || set -- --floor

measured=0
"$gpubench" fleet run headline --slurm --out "$folder" || measured=$?
case $measured in
    0 | 4) ;; # 4: some nodes have not answered; the others are judged
    *) exit "$measured" ;;
esac
judged=0
"$gpubench" fleet judge "$folder" --out "$folder/fleet.xml" --out "$folder/fleet.md" "$@" || judged=$?
[ "$judged" -ne 0 ] || exit "$measured"
exit "$judged"
