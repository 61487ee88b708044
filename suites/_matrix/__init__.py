"""Matrix products for several suites: formats, data, references, the vendor's libraries, kernels of few tokens."""
