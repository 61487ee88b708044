"""A device for tests: the entry point of the distribution `clockwork` beside this folder names it."""
