"""The doors: all that a plugin may import of gpubench, one module an audience.

`suite` (with `libraries` for suites that measure vendor libraries), `collector`, `report`, `gate` and `importer` serve
the rooms and third parties alike; `notebook` is for people."""
