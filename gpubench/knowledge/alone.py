"""Name the cases that measure one unit of a device by itself, by which the figures of other cases are explained.

The names are those of `suite/case`; a suite by another author has none."""

from gpubench.knowledge.key_figures import MEMORY_READS

# The bare instructions of the matrix unit and of the vector units.
INSTRUCTIONS = ("tensor/wgmma", "tensor/mma", "tensor/fma")
# Cases that only read memory, and cases that write as many bytes as they read.
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
