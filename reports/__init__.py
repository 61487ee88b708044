"""Provide the output formats: each public module is a report plugin with the name of its file (see ARCHITECTURE.md)."""
