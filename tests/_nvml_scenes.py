"""A child of tests/test_health.py: read the health of a card through the fake NVML, one scene after the other.

`python _nvml_scenes.py SCENES STATE`: SCENES is JSON, a list of [lines of STATE before, lines of STATE after, kernel
log]. It prints for each scene, as JSON, the health before, the health after and the errors that appeared in between.
"""

import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path

from gpubench import plugins
from gpubench.measuring import health

PROTOTYPE = inspect.getmodule(type(plugins.load("backends", "card"))).PROTOTYPE
NVML = plugins.load("collectors", "nvml")


def main(scenes, state):
    """Read each scene twice, as before and after a run."""
    answers = []
    for before, after, log in scenes:
        state.write_text(before)
        source = NVML.health([PROTOTYPE])
        source._log = Path(log)
        first = health.judge("card:0", health.checked(source.read(PROTOTYPE)))
        state.write_text(after)
        second = health.judge("card:0", health.checked(source.read(PROTOTYPE)))
        source.close()
        answers.append([asdict(device_health) for device_health in (first, second, health.risen(first, second))])
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
