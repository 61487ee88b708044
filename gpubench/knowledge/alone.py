"""Name the cases that measure one unit of a device by itself, by which the figures of other cases are explained.

A name is a suite and a case, `gemm/square`; suites by other authors have none here."""

from gpubench.knowledge.key_figures import MEMORY_READS

# The bare instructions of the matrix unit and of the vector units.
INSTRUCTIONS = ("tensor/wgmma", "tensor/mma", "tensor/fma")
HOST_UNITS = "gemm/vector_fma"  # its fastest case of a type is the peak of a host's products
# Cases that only read memory, and cases that write half of the bytes that they move.
READS = (*MEMORY_READS, "bandwidth/dot")
COPIES = ("bandwidth/copy", "bandwidth/memcpy", "bandwidth/scale", "bandwidth/device_copy")
WRITE_AS_MUCH = (*COPIES, "bandwidth/device_copy_on", "compilers/softmax", "compilers/rmsnorm")
# Large plain copies over a link, and products by the vendor's library.
LINKS = ("bandwidth/h2d", "bandwidth/d2h", "bandwidth/host_link", "soak/copy", "p2p/read", "p2p/write", "ipc/pull")
PRODUCTS = ("gemm/square", "gemm/layer")
# Axes on which another text is another way to do the same work, and axes of which a larger number gives the work more
# to run on, or larger pieces.
WAYS = {"memory": "user", "way": "user", "engine": "user", "by": "author", "path": "author", "rung": "author"}
BLOCKS = ("units", "threads", "depth", "independent")
SIZES = ("size_bytes", "n", "block_bytes", "chunk_bytes", "messages", "count", "batch", "tokens")

DATA_CASE, BURST_CASE = "gemm/data", "gemm/burst"
STEP_CASE, PREFILL_CASE = "inference/step", "inference/prefill"
LATENCY_CASE, LOAD_CASE, SEND_CASE = "latency/chase", "latency/load", "compression/send"
GEMV_CASE, SKINNY_CASE = "gemm/gemv", "gemm/skinny"
DECODE_ATTENTION_CASE, PREFILL_ATTENTION_CASE = "inference/decode_attention", "inference/prefill_attention"

# The cases that test why a case is not faster, by case or else by suite, as patterns of ids; {axis} is the case's
# own value: what its unit does alone, the case without one of the causes, and an empty kernel.
_READ, _COPY = "bandwidth/read[size=4GiB,dtype=float32]", "bandwidth/copy[size=4GiB,dtype=float32]"
_MEMORY = (_READ, "gemm/read[size=4GiB]", _COPY, "latency/launch")
_INSTRUCTION = (
    "tensor/wgmma[dtype={dtype},sums=float32,columns=256,a=shared,wait=late]",
    "tensor/mma[shape=m16n8k16,dtype={dtype},sums=float64,independent=16]",
    "tensor/fma[dtype={dtype},independent=32]",
    HOST_UNITS + "[dtype={dtype},*",
)
_HALF = "tensor/wgmma[dtype=float16,sums=float32,columns=256,a=shared,wait=late]"
_DATA = tuple(f"gemm/data[data={data},dtype={{dtype}},n={{n}}]" for data in ("normal", "zeros"))
_PRODUCT = (*_INSTRUCTION, *_DATA, "gemm/burst[dtype={dtype},*", "latency/launch")
_PATHS, _WEIGHTS = ("warp", "tensor"), ("8MiB", "32MiB", "128MiB", "448MiB")
_ATTENTION = ("triton", "unfused")  # what a prefill takes with and without Triton
COUNTERFACTUALS = {
    "gemm": _PRODUCT,
    "gemm/gemv": _MEMORY,
    "gemm/skinny": _MEMORY,
    "bandwidth": _MEMORY,
    "bandwidth/h2d": ("bandwidth/host_link[*direction=h2d,*", "latency/launch"),
    "bandwidth/d2h": ("bandwidth/host_link[*direction=d2h,*", "latency/launch"),
    "compilers": _MEMORY,
    "latency": (
        *(f"latency/load[space={space}]" for space in ("l1", "l2", "dram")),
        *("latency/reach[reach={size}]", "latency/reach[reach=64MiB]"),
    ),
    "inference": _MEMORY,
    STEP_CASE: (
        *(_READ, "latency/launch", "gemm/skinny[path=tensor,weights={weights},tokens={batch}]"),
        "inference/decode_attention[batch={batch},context={context},heads=32,kv_heads=8,dim=128]",
        *(f"gemm/gemv[path={path},weights={{weights}},size={size}]" for path in _PATHS for size in _WEIGHTS),
    ),
    PREFILL_CASE: (
        *(_HALF, "gemm/square[dtype=float16,n=8192]", "bandwidth/copy[size=1GiB,dtype=float32]", "latency/launch"),
        *(f"inference/prefill_attention[tokens={{tokens}},heads=32,kv_heads=8,dim=128,by={by}]" for by in _ATTENTION),
    ),
}
