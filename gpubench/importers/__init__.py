"""Importers read the outputs of other tools, one module for each tool, and turn them into run files.

Each is a plugin named after its file and a pure function of a tool's output, and imports only `gpubench.api.importer`.
"""
