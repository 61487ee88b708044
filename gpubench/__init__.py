"""gpubench profiles and benchmarks GPUs of NVIDIA and AMD with one method and writes each run to one file."""

__version__ = "0.1.0"  # equal to pyproject.toml's, held by tests/test_structure.py
DISTRIBUTION = "gpubench-suite"  # the name `gpubench` on the public index belongs to another project
