"""Import a trace of torch.profiler (Kineto) or of JAX in Chrome's format: the device's time by operator.

Kernels belong to the operator with the same `External id`, whose shapes torch records with `record_shapes=True`. JAX
names the operation of XLA beside each kernel, and records no shapes on a GPU. A trace may be gzipped and of any size:
it is read in pieces, and a kernel takes 40 bytes of memory."""

import itertools
import re
from collections.abc import Iterable

from gpubench.api import importer as gb

from ._kernels import Trace

_DEVICE = re.compile(
    r'"id":\s*(\d+),\s*"name":\s*"([^"]*)",\s*"totalGlobalMem":\s*(\d{1,15}),\s*'
    r'"computeMajor":\s*(\d{1,2}),\s*"computeMinor":\s*(\d)'
)


def _read(chunks: Iterable[str]) -> gb.Imported:
    source = iter(chunks)
    begin = next(source, "")
    trace = Trace()
    try:
        for event in gb.objects_of(itertools.chain([begin], source), "traceEvents"):
            trace.take(event)
    except (gb.NotAList, KeyError, TypeError, ValueError, OverflowError) as error:
        raise gb.BadOutput(f"damaged, or newer than the known versions: {error}") from error
    if not len(trace.kernel_ids):
        raise gb.BadOutput("no kernel of a GPU is in this trace: record them, with no other profiler beside")
    output = gb.Output("profile", "imported: the operators of a traced program")
    for number, name, size, major, minor in _DEVICE.findall(begin):
        facts = {"arch": f"sm_{major}{minor}", "memory_bytes": int(size)}
        output.devices[f"cuda:{number}"] = gb.make_device(f"cuda:{number}", name, **facts)
    for traced in trace.results():
        output.results += traced.results()
    output.devices = {one.device: output.devices.get(one.device, gb.make_device(one.device)) for one in trace.results()}
    return output.imported()


importer: gb.StreamImporter = gb.StreamReader(
    "traces of torch.profiler and of JAX: operators with their unavoidable work; Chrome's JSON, also gzipped",
    lambda text: '"traceEvents"' in text or bool(re.match(r'\s*\[\s*\{"', text) and '"ph"' in text),
    _read,
)
