"""Vendor libraries for suites that measure them: tables of functions without a Python binding, and CUDA's driver."""

from gpubench.devices.native import hipblaslt, nvcomp
from gpubench.devices.native.driver import Driver, DriverCallError

__all__ = ["Driver", "DriverCallError", "hipblaslt", "nvcomp"]
