"""Formats in which a judgement is published, one per file: see ARCHITECTURE.md."""
