"""Provide the basics for all other packages: errors that a user can act on, units for people, and safe text.

It imports nothing else of gpubench, so that any module may use it without a circular import."""
