"""One plugin per file: see ARCHITECTURE.md."""
