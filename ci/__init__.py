"""Provide the gates: each public module is a plugin with the name of its file (see ARCHITECTURE.md)."""
