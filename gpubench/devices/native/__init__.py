"""Small ctypes tables of vendor libraries that have no binding; no library is loaded at import."""
