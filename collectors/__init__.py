"""One plugin a file: see ARCHITECTURE.md."""
