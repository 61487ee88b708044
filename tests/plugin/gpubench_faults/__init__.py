"""A third party's room of suites, found by its entry point: what goes wrong, on purpose."""
