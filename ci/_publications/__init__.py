"""Forms that a judgement is published in, one a file: see ARCHITECTURE.md."""
