"""What vendor libraries offer and CuPy does not: small ctypes tables of libraries that have no binding, and the driver.

No library is loaded at import.
"""
