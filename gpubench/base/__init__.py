"""The foundation of all other packages: errors that a user can act on, units for people, and text that is safe to show.

It imports nothing else of gpubench, so that any module may use it without a circular import.
"""
