#!/usr/bin/env bash
# Gate the nodes of a Slurm cluster, each by itself: a new node against the floors of its GPUs, an old one against
# its own baseline.
#
#   sbatch --nodes=4 ci/slurm.sh                        # floors: accept four nodes
#   sbatch --nodelist=gpu07 ci/slurm.sh --baseline gpu07    # one node against what was saved under its name
#   sbatch ci/slurm.sh --save-baseline gpu07            # … and so it is saved
#
# Words go to `gpubench gate --run headline`; without any, `--floor` does. `gpubench` has to be on the PATH of the
# nodes, or named by GPUBENCH. Each node writes its run files, JUnit XML and Markdown into gpubench-runs/JOB/, below the
# folder that the job was sent from. Ends with the worst of the nodes' statuses: 1 where one is slower.
#
#SBATCH --job-name=gpubench-gate
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=00:30:00
#SBATCH --output=gpubench-%j.log

set -euo pipefail

gpubench=${GPUBENCH:-gpubench}
folder=gpubench-runs/${SLURM_JOB_ID:?this is a script for sbatch}
mkdir -p "$folder"
[ $# -gt 0 ] || set -- --floor

# In the task's own shell, because each node names its files after itself.
# shellcheck disable=SC2016
one_node='
    node=${SLURMD_NODENAME:-$(uname -n)}
    status=0
    "$1" gate --run headline --out "$2/$node.jsonl" --junit "$2/$node.xml" --markdown "$2/$node.md" "${@:3}" || status=$?
    echo "$status" >"$2/$node.status"
'
srun --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c "$one_node" - "$gpubench" "$folder" "$@"

worst=0
for file in "$folder"/*.status; do
    status=$(cat "$file")
    echo "$(basename "$file" .status): status $status"
    # slower (1) is never hidden by cannot be judged (4); what is broken stands before both
    case $worst,$status in
        *,0 | 1,4) ;;
        0,* | 4,*) worst=$status ;;
        1,*) [ "$status" -le 1 ] || worst=$status ;;
        *) [ "$status" -le "$worst" ] || worst=$status ;;
    esac
done
exit "$worst"
