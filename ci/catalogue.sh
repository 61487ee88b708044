#!/usr/bin/env bash
# Write docs/catalogue, the pages of each card and each case in tests/recordings, which are anonymised already.
#
#   bash ci/catalogue.sh

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
is_usable || setup dev
exec "$python" -P -m gpubench site "$root/tests/recordings" -o "$root/docs/catalogue" --no-runs --no-redact
