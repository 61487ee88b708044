"""Vendor libraries that have no Python binding, as tables of their functions: for suites that measure them."""

from gpubench.devices.native import hipblaslt, nvcomp

__all__ = ["hipblaslt", "nvcomp"]
