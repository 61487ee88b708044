"""Report plugins: each public module is one, named by its file (see ARCHITECTURE.md)."""
