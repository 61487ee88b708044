"""Open devices: host and cupy (CUDA and ROCm), reached only through gpubench.plugins."""
