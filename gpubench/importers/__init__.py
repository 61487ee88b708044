"""Readers of other tools' outputs, one file a tool: nvbandwidth, nccl-tests, nvbench and others become run files.

Each is a plugin called by its file's name, a pure function of what a tool printed, and imports `gpubench.api.importer`
alone.
"""
