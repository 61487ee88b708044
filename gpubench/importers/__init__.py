"""One other tool's output a file: see ARCHITECTURE.md."""
