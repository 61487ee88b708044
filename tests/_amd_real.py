"""The collector's own reader on AMD's real libraries: `python _amd_real.py amdsmi|pyrsmi COLLECTORS [PCI NAME…]`.

It runs in the Python that those libraries were built for, which has none of this project's dependencies: for the one
door that the reader imports, a stand-in is enough.
"""

import importlib.util
import json
import sys
import types
from collections import namedtuple
from pathlib import Path

Counter = namedtuple("Counter", "name unit kind period_s source measures bits", defaults=("", ()))
EventBit = namedtuple("EventBit", "mask name kind")


class EnumOfNames:
    """Stands for an enumeration: each member is its own name."""

    def __getattr__(self, name):
        return name


def reader(folder):
    door = types.ModuleType("gpubench.api.collector")
    door.Counter, door.EventBit, door.Measure, door.EventClass = Counter, EventBit, EnumOfNames(), EnumOfNames()
    room = types.ModuleType("gpubench.collectors")
    room.__path__ = [str(folder)]
    packages = {name: types.ModuleType(name) for name in ("gpubench", "gpubench.api")}
    sys.modules.update({**packages, "gpubench.api.collector": door, "gpubench.collectors": room})
    return importlib.import_module("gpubench.collectors._amd_libraries")


def main():
    """Print a JSON object: the library's version and its values, or without a PCI address the child's answers."""
    module = reader(Path(sys.argv[2]))
    if len(sys.argv) == 3:
        module.main()
        return
    library = module.LIBRARIES[sys.argv[1]]()
    answers = {pci: module.answer(library, pci, sys.argv[4:]) for pci in sys.argv[3].split(",")}
    sys.stdout.write("\n" + json.dumps({"version": library.version, "values": answers}) + "\n")


if __name__ == "__main__":
    main()
