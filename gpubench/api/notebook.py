"""The names that a person uses in a notebook."""

from gpubench.tools.notebook import NotebookRun, read_run

__all__ = ["NotebookRun", "read_run"]
