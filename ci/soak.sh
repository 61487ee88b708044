#!/usr/bin/env bash
# Measure on the host for a long time and check that memory, descriptors, processes and temporary files stay as they are.
#
#   bash ci/soak.sh [MINUTES]      default: 60
#
# Prints a line per run. Exit status: 1 if a resource grew or was left behind, 3 if a run failed.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
is_usable || setup dev
exec "$python" "$root/ci/_soak.py" "$@"
