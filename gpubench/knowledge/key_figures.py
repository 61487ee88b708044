"""The key figures of every run: what a buyer, an operator and a model engineer ask first.

On a GPU they are eight, and two more where it has peers."""

from gpubench.model import KeyFigure

# Key figures that a run file declares for one of these suites do not count: older versions declared up to four a suite.
BUILT_IN_SUITES = frozenset(
    (
        *("bandwidth", "collectives", "compilers", "compression", "gemm", "inference", "ipc", "latency", "p2p"),
        *("patterns", "soak", "startup", "storage", "tensor", "training", "virtual"),
    )
)

_STEP = (("model", "llama-3-8b"), ("weights", "float16"))
_CHUNK = ("chunk_bytes", 2**16)
_TEXT, _WEIGHTS = ((("corpus", corpus), ("codec", "lz4"), _CHUNK) for corpus in ("text", "bf16-weights"))
_ROUNDTRIP = (("corpus", "text"), ("codec", "zstd-1"), _CHUNK)  # on text the quick tier has level 1 alone

_MEMORY = (
    ("bandwidth", KeyFigure("Memory read", "read", (("size_bytes", 2**32), ("dtype", "float32")))),
    ("bandwidth", KeyFigure("Memory copy", "copy", (("size_bytes", 2**30), ("dtype", "float32")))),
)
_LATENCY = ("latency", KeyFigure("Memory latency", "chase", (("size_bytes", 2**32),)))

MEMORY_READS = ("bandwidth/read", "gemm/read")  # the cases whose rate of reading memory gives the roof

# the group of a key figure, by its case or else by its suite; the lists below are in the order of the groups
GROUPS = {
    "bandwidth/h2d": "links",
    **dict.fromkeys(("bandwidth", "latency"), "memory"),
    **dict.fromkeys(("gemm", "compression"), "compute"),
    **dict.fromkeys(("p2p", "collectives", "ipc"), "links"),
    **dict.fromkeys(("inference", "training"), "models"),
}

# the suite of each key figure, and the figure, in the order of a summary
OF_GPU = (
    *_MEMORY,
    _LATENCY,
    ("gemm", KeyFigure("GEMM bfloat16", "square", (("dtype", "bfloat16"), ("n", 8192)))),
    ("gemm", KeyFigure("GEMM float8", "square", (("dtype", "float8_e4m3"), ("n", 8192)))),
    ("bandwidth", KeyFigure("Host to device, pinned", "h2d", (("memory", "pinned"), ("size_bytes", 2**28)))),
    ("p2p", KeyFigure("Copy between GPUs", "read", (("by", "engine"), ("size_bytes", 2**30)))),
    ("collectives", KeyFigure("All-reduce", "all_reduce", (("size_bytes", 2**30),))),
    ("inference", KeyFigure("Llama-3-8B step, float16", "step", (*_STEP, ("batch", 1), ("context", 2048)))),
    ("inference", KeyFigure("Llama-3-8B prefill", "prefill", (*_STEP, ("tokens", 2048)))),
)
OF_HOST = (
    *_MEMORY,
    _LATENCY,
    ("gemm", KeyFigure("GEMM float64", "square", (("dtype", "float64"), ("n", 2048)))),
    ("gemm", KeyFigure("GEMM float32", "square", (("dtype", "float32"), ("n", 2048)))),
    ("compression", KeyFigure("Zstandard-1 compression, text", "roundtrip", _ROUNDTRIP, series="compress.hot")),
    ("compression", KeyFigure("Zstandard-1 decompression, text", "roundtrip", _ROUNDTRIP, series="decompress.hot")),
    ("ipc", KeyFigure("Copy between processes", "pull", (("size_bytes", 2**30),))),
)

# The figures that lead the section of their suite. Each measures the device: no limit of gpubench's own, no loss of an
# advice, no program without data, no copy inside one GPU. Their titles are completed by the other axes of the case.
OF_SUITES = (
    ("collectives", KeyFigure("All-gather, bus bandwidth", "all_gather", (("size_bytes", 2**30),))),
    ("compression", KeyFigure("LZ4 compression, text", "roundtrip", _TEXT, "compress.hot")),
    ("compression", KeyFigure("LZ4 decompression, text", "roundtrip", _TEXT, "decompress.hot")),
    ("compression", KeyFigure("LZ4 compression, bfloat16 weights", "roundtrip", _WEIGHTS, "compress.hot")),
    ("compression", KeyFigure("LZ4 decompression, bfloat16 weights", "roundtrip", _WEIGHTS, "decompress.hot")),
    ("ipc", KeyFigure("Copy between processes on two GPUs", "pull", (("path", "peer"), ("size_bytes", 2**30)))),
    ("patterns", KeyFigure("Rebuilding after a death", "death", (("phase", "mapped"),), "rebuild.self")),
    ("soak", KeyFigure("Product, compared bit by bit", "product")),
    ("soak", KeyFigure("Memory written and read", "memory")),
    ("soak", KeyFigure("Copy to the device", "copy", (("direction", "h2d"),))),
    ("tensor", KeyFigure("HGEMM of the vendor's best of eight", "hgemm", (("rung", "wgmma"), ("n", 4096)), "of_best")),
    ("training", KeyFigure("Training step of one layer", "layer", (("recompute", "off"), ("by", "torch")))),
    ("virtual", KeyFigure("Suspend and resume, per GiB", "suspend", (("resident_bytes", 2**34),), "per GiB")),
)
