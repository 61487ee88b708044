"""Find backends, collectors, suites, reports, gates and importers, and define the interface of each kind of plugin.

`loading` turns entry points into objects; the other modules are structural protocols, one for each kind of plugin, so
that a plugin inherits nothing."""

from gpubench.plugins.loading import (
    BrokenPlugin,
    Room,
    T,
    call_library,
    folder_of_files,
    is_file,
    load,
    load_file,
    make_package,
    names,
    plugin_name,
    summary,
    unknown,
)
