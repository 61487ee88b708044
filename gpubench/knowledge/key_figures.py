"""The key figures of every run: what a buyer, an operator and a model engineer ask first.

On a GPU they are eight, and two more where it has peers."""

from gpubench.model import KeyFigure

# Key figures that a run file declares for one of these suites do not count: older versions declared up to four a suite.
BUILT_IN_SUITES = frozenset(
    (
        *("bandwidth", "collectives", "compilers", "compression", "gemm", "inference", "ipc", "latency", "p2p"),
        *("patterns", "soak", "startup", "storage", "tensor", "virtual"),
    )
)

_STEP = (("model", "llama-3-8b"), ("weights", "float16"))
_ROUNDTRIP = (("corpus", "ids"), ("codec", "zstd-3"), ("chunk_bytes", 2**16))  # 3 is the default level of Zstandard

_MEMORY = (
    ("bandwidth", KeyFigure("Memory read", "read", (("size_bytes", 2**32), ("dtype", "float32")))),
    ("bandwidth", KeyFigure("Memory copy", "copy", (("size_bytes", 2**30), ("dtype", "float32")))),
)
_LATENCY = ("latency", KeyFigure("Memory latency", "chase", (("size_bytes", 2**32),)))

MEMORY_READS = ("bandwidth/read", "gemm/read")  # the cases whose rate of reading memory gives the roof

# the suite of each key figure, and the figure, in the order of a summary
OF_GPU = (
    *_MEMORY,
    ("bandwidth", KeyFigure("Host to device, pinned", "h2d", (("memory", "pinned"), ("size_bytes", 2**28)))),
    ("gemm", KeyFigure("GEMM bfloat16", "square", (("dtype", "bfloat16"), ("n", 8192)))),
    ("gemm", KeyFigure("GEMM float8", "square", (("dtype", "float8_e4m3"), ("n", 8192)))),
    _LATENCY,
    ("inference", KeyFigure("Llama-3-8B step, float16", "step", (*_STEP, ("batch", 1), ("context", 2048)))),
    ("inference", KeyFigure("Llama-3-8B prefill", "prefill", (*_STEP, ("tokens", 2048)))),
    ("p2p", KeyFigure("Copy between GPUs", "read", (("by", "engine"), ("size_bytes", 2**30)))),
    ("collectives", KeyFigure("All-reduce", "all_reduce", (("size_bytes", 2**30),))),
)
OF_HOST = (
    *_MEMORY,
    ("gemm", KeyFigure("GEMM float64", "square", (("dtype", "float64"), ("n", 2048)))),
    ("gemm", KeyFigure("GEMM float32", "square", (("dtype", "float32"), ("n", 2048)))),
    _LATENCY,
    ("ipc", KeyFigure("Copy between processes", "pull", (("size_bytes", 2**30),))),
    ("compression", KeyFigure("Zstandard compression", "roundtrip", _ROUNDTRIP, series="compress.hot")),
    ("compression", KeyFigure("Zstandard decompression", "roundtrip", _ROUNDTRIP, series="decompress.hot")),
)
