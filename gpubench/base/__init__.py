"""What every other package stands on.

The errors that a user can act on, units as a person reads them, and text that is safe to show.

It imports nothing else of gpubench, so that any module may use it without starting a circle.
"""
