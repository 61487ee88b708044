"""Collect counters from devices and the host: each public module is one plugin (see ARCHITECTURE.md)."""
