#!/usr/bin/env bash
# Write docs/catalogue, the pages of each card and each case in tests/recordings, which are anonymised already.
# The runs that a program disturbed or that were slowed on purpose are left out.
#
#   bash ci/catalogue.sh

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
is_usable || setup dev
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
cp -r "$root/tests/recordings/." "$runs"
rm -r "$runs/longer" "$runs/fleet/shared" "$runs/fleet/link-loaded"
"$python" -P -m gpubench site "$runs" -o "$root/docs/catalogue" --no-runs --no-redact
