"""Memory that processes share on the host, by each kind; a handle carries what is needed to open it."""

import os

import numpy as np
import pytest
from _modules import opened

from gpubench.base.errors import Skip


@pytest.mark.parametrize("kind", ["memfd", "file"])
def test_two_mappings_share_their_memory(host, kind):
    memory = host.shared_memory(kind)
    owned = memory.allocate(8192)
    handle = memory.export(owned)
    opened = memory.open(handle, 8192)
    owned.array[:] = np.arange(8192, dtype=np.uint16).astype(np.uint8)
    assert (opened.array == owned.array).all()
    opened.array[17] = 99
    assert owned.array[17] == 99
    opened.close()
    handle.close()
    if kind == "memfd":
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle.descriptors[0])
    owned.array[0] = 1  # closing a handle keeps the memory
    owned.close()


def test_a_named_file_is_removed_with_its_owner(host):
    memory = host.shared_memory("file")
    owned = memory.allocate(4096)
    name = memory.export(owned).data.decode()
    assert os.path.exists(name)  # noqa: PTH110 - the name of a handle, as another process gets it
    owned.close()
    with pytest.raises(FileNotFoundError):
        memory.open(memory.export(owned), 4096)


@pytest.mark.parametrize("kind", ["raw", "block", "pool", "virtual", "nonsense"])
def test_a_kind_of_memory_that_the_host_does_not_support_is_skipped_with_its_name(host, kind):
    with pytest.raises(Skip, match=kind):
        host.shared_memory(kind)
    with pytest.raises(Skip, match="events"):
        host.shared_event()
    with pytest.raises(Skip, match="concurrent queues"):
        host.together(lambda: None)


def test_on_the_clockwork_device_work_queued_together_takes_the_sum_of_the_times():
    device = opened("clockwork")
    timing = device.time(lambda: device.together(lambda: device.spend(1.0), lambda: device.spend(2.0)), 1)
    assert timing.device == (3.0,)
