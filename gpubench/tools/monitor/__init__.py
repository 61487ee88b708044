"""The counters of a machine as they are now: on a terminal, and for Prometheus."""
