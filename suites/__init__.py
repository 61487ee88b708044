"""One suite a file, or a folder once it outgrows one; what several share is beside them, its name begun by `_`."""
