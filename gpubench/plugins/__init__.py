"""How backends, collectors, suites, reports, gates and importers are found, and what shape each of them has.

`loading` turns entry points into objects; the other modules are structural protocols, one kind of plugin each, so that
a plugin inherits nothing.
"""

from gpubench.plugins.loading import BrokenPlugin, Room, T, asked, called, is_file, load, load_file, names, unknown

__all__ = ["BrokenPlugin", "Room", "T", "asked", "called", "is_file", "load", "load_file", "names", "unknown"]
