"""Suites: each is a file or a folder of topics. Modules that several suites share lie beside them and begin with _."""
