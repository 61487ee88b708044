"""Open devices: host, cupy (CUDA and ROCm) and clockwork, reached only through gpubench.plugins."""
