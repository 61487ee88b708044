"""Vendor libraries for suites that measure them: tables of functions without a Python binding, and CUDA's driver.

`processes_on` counts the processes on a device, as the collectors list them."""

from gpubench.devices.native import hipblaslt, nvcomp
from gpubench.devices.native.driver import Driver, DriverCallError
from gpubench.tools.monitor.processes import processes_on

__all__ = ["Driver", "DriverCallError", "hipblaslt", "nvcomp", "processes_on"]
