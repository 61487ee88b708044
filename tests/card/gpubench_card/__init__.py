"""A third party's room of backends, found by its entry point: a GPU that is the host in disguise."""
