"""Memory that processes share on the host, one kind after another; a handle carries what opens it."""

import os

import numpy as np
import pytest

from gpubench import plugins
from gpubench.base.errors import Skip


@pytest.fixture(scope="module")
def host():
    backend = plugins.load("backends", "host")
    return backend.open(backend.devices()[0])


@pytest.mark.parametrize("kind", ["memfd", "file"])
def test_what_one_mapping_writes_the_other_reads(host, kind):
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
    owned.close()


def test_a_handle_of_descriptors_is_closed_once_and_leaves_the_memory_alone(host):
    memory = host.shared_memory("memfd")
    owned = memory.allocate(4096)
    handle = memory.export(owned)
    handle.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle.descriptors[0])
    owned.array[0] = 1
    owned.close()


def test_a_named_file_is_gone_with_its_owner(host):
    memory = host.shared_memory("file")
    owned = memory.allocate(4096)
    name = memory.export(owned).data.decode()
    assert os.path.exists(name)  # noqa: PTH110 - the name of a handle, as another process gets it
    owned.close()
    with pytest.raises(FileNotFoundError):
        memory.open(memory.export(owned), 4096)


@pytest.mark.parametrize("kind", ["raw", "block", "pool", "virtual", "nonsense"])
def test_a_kind_that_the_host_has_not_is_skipped_by_its_name(host, kind):
    with pytest.raises(Skip, match=kind):
        host.shared_memory(kind)


def test_the_host_has_no_events_between_processes_and_no_second_queue(host):
    with pytest.raises(Skip, match="events"):
        host.shared_event()
    with pytest.raises(Skip, match="concurrent queues"):
        host.together(lambda: None)


def test_on_the_clockwork_device_what_is_queued_together_takes_the_sum():
    backend = plugins.load("backends", "clockwork")
    device = backend.open(backend.devices()[0])
    timing = device.time(lambda: device.together(lambda: device.spend(1.0), lambda: device.spend(2.0)), 1)
    assert timing.device == (3.0,)
