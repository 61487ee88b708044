#!/usr/bin/env bash
# Measure the nodes of a Slurm job at the same time and judge them: new nodes against the floors of their GPUs, old ones
# against an earlier job; five or more comparable GPUs against each other as well.
#
#   sbatch --nodes=4 ci/slurm.sh                                  # floors: accept four nodes
#   sbatch --nodes=4 ci/slurm.sh --baseline gpubench-runs/1234    # against the nodes of an earlier job
#
# Arguments are passed to `gpubench fleet judge`; without arguments, `--floor` is. `gpubench` must be on the PATH of the
# batch node, or be named by GPUBENCH, and its environment must be on a path that all nodes have. Run files, fleet.json,
# JUnit XML and Markdown are written to gpubench-runs/JOB/ below the folder from which the job was submitted. All nodes
# must share that folder and have the same number of GPUs; all of these are measured. The exit status is that of the
# judgement: 1 if a component is slow; 4 if that cannot be judged, or if a node has not answered.
#
#SBATCH --job-name=gpubench-fleet
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=00:30:00
#SBATCH --output=gpubench-%j.log

set -euo pipefail

gpubench=${GPUBENCH:-gpubench}
folder=gpubench-runs/${SLURM_JOB_ID:?this is a script for sbatch}
[ $# -gt 0 ] || set -- --floor

# An exclusive job has all GPUs of its nodes, but srun gives a step only those that are asked for (man srun, --gres).
gpus=()
[ -z "${SLURM_GPUS_ON_NODE:-}" ] || gpus=(-- "--gpus-per-node=$SLURM_GPUS_ON_NODE")
measured=0
"$gpubench" fleet run headline --slurm --out "$folder" ${gpus[@]+"${gpus[@]}"} || measured=$?
case $measured in
    0 | 4) ;; # 4: some nodes have not answered; the others are judged
    *) exit "$measured" ;;
esac
judged=0
"$gpubench" fleet judge "$folder" --out "$folder/fleet.xml" --out "$folder/fleet.md" "$@" || judged=$?
[ "$judged" -ne 0 ] || exit "$measured"
exit "$judged"
