"""Call what vendor libraries offer and CuPy does not: the driver, and libraries that have no Python binding.

No library is loaded at import."""
