#!/usr/bin/env bash
# Print the software bill of materials (CycloneDX 1.5, JSON) of the environment that `bash ci/test.sh` makes.
#
#   bash ci/sbom.sh [EXTRA…] >sbom.json      e.g. host, cuda13; without any, what a base installation needs
#
# It uses no network once .venv exists. For another environment, run ci/_sbom.py with the Python of that environment.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
is_usable || setup dev
exec "$python" "$root/ci/_sbom.py" "$@"
