"""A collector of a third party that goes wrong on purpose."""
