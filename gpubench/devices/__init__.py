"""Open the devices that gpubench measures.

Backends that open them (host, CuPy for CUDA and ROCm, clockwork for tests), `native` tables of vendor libraries that
have no binding, and what ROCm needs to see a GPU.

Backends are plugins: the rest of the core reaches them by entry point alone."""
