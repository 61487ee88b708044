"""Provide the forms in which a judgement is published, each in a file of its name (see ARCHITECTURE.md)."""
