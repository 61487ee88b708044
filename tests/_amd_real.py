"""The collector's own reader on AMD's real libraries: `python _amd_real.py amdsmi|pyrsmi COLLECTORS [PCI NAME…]`.

It runs in the Python that those libraries were built for, which has none of this project's dependencies: of the one
import that the reader has, a stand-in is enough.
"""

import importlib.util
import json
import sys
import types
from collections import namedtuple
from pathlib import Path

Counter = namedtuple("Counter", "name unit kind period_s source")


def reader(folder: Path) -> types.ModuleType:
    """The module `_amd_libraries` of the collectors' folder."""
    api = types.ModuleType("gpubench.api")
    api.Counter = Counter
    room = types.ModuleType("gpubench.collectors")
    room.__path__ = [str(folder)]
    sys.modules.update({"gpubench": types.ModuleType("gpubench"), "gpubench.api": api, "gpubench.collectors": room})
    return importlib.import_module("gpubench.collectors._amd_libraries")


def main() -> None:
    """One JSON object: the library's version and the values."""
    module = reader(Path(sys.argv[2]))
    library = module.LIBRARIES[sys.argv[1]]()
    found = {pci: module.answer(library, pci, sys.argv[4:]) for pci in sys.argv[3].split(",")}
    sys.stdout.write("\n" + json.dumps({"version": library.version, "values": found}) + "\n")


if __name__ == "__main__":
    main()
