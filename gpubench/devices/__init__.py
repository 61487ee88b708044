"""Open the devices that gpubench measures: backends, tables of vendor libraries, and what ROCm needs to see a GPU.

Backends are plugins: the rest of the core reaches them by entry point alone."""
