"""The fingerprint: which conditions distinguish two results, and which do not."""

import dataclasses
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis.fingerprint import Fingerprint, fingerprint
from gpubench.model.store import read_run

RECORDINGS = Path(__file__).parent / "recordings"
DETAILS = (
    ("clock.application_hz", "1500000000"),
    ("clock.sm_most_hz", "1980000000"),
    ("power.limit_w", "700.0"),
    ("ecc", "on"),
    ("mig", "off"),
)
H200 = make.device(units=132, details=DETAILS)
VERSIONS = (("cuda.driver", "13.0"), ("nvidia.driver", "580.159.04"))


def fingerprint_of(device=H200, versions=VERSIONS):
    return fingerprint(make.facts(device, versions=versions), (device.id,))


def with_detail(name, value):
    return dataclasses.replace(H200, details=tuple({**dict(DETAILS), name: value}.items()))


def test_a_fingerprint_names_model_driver_clocks_power_limit_ecc_and_mig():
    text = "NVIDIA H200, units 132, driver nvidia 580, clocks 1.500 GHz/1.980 GHz, power limit 700.0 W, ECC on, MIG off"
    assert fingerprint_of().text == text.replace("units 132", "132 compute units")


@pytest.mark.parametrize(
    ("another", "versions", "difference"),
    [
        (dataclasses.replace(H200, name="NVIDIA H100"), VERSIONS, "model NVIDIA H200 instead of NVIDIA H100"),
        (dataclasses.replace(H200, units=66), VERSIONS, "units 132 instead of 66"),
        (with_detail("power.limit_w", "500.0"), VERSIONS, "power limit 700.0 W instead of 500.0 W"),
        (with_detail("ecc", "off"), VERSIONS, "ECC on instead of off"),
        (with_detail("mig", "on"), VERSIONS, "MIG off instead of on"),
        (
            with_detail("clock.application_hz", "1980000000"),
            VERSIONS,
            "clocks 1.500 GHz/1.980 GHz instead of 1.980 GHz/1.980 GHz",
        ),
        (dataclasses.replace(H200, details=DETAILS[:4]), VERSIONS, "MIG off instead of unknown"),
        (H200, (("nvidia.driver", "575.1"),), "driver nvidia 580 instead of nvidia 575"),
        (H200, (("nvidia.driver", "580.2"),), ""),
        (dataclasses.replace(H200, id="cuda:3", uuid="GPU-1", pci="0000:01:00.0", memory_bytes=1), VERSIONS, ""),
    ],
)
def test_other_conditions_have_another_fingerprint_and_another_board_or_patch_has_not(another, versions, difference):
    assert fingerprint_of().differences(fingerprint_of(another, versions)) == ((difference,) if difference else ())
    assert (fingerprint_of().id != fingerprint_of(another, versions).id) == bool(difference)
    assert (fingerprint_of() != fingerprint_of(another, versions)) == bool(difference)


def test_without_a_driver_version_the_runtimes_is_used_and_the_host_has_none():
    assert dict(fingerprint_of(versions=(("cuda.driver", "13.0"),)).pairs)["driver"] == "cuda 13"
    assert "driver" not in dict(fingerprint_of(versions=()).pairs)
    host = make.device("host", "a processor", units=8)
    assert fingerprint_of(host) == Fingerprint((("model", "a processor"), ("units", "8")))


def test_equal_devices_are_named_once_and_a_missing_one_is_a_bug():
    second = dataclasses.replace(H200, id="cuda:1")
    facts = make.facts(H200, second, make.device("cuda:2", "NVIDIA H100", units=132))
    pair = dict(fingerprint(facts, ("cuda:0", "cuda:1")).pairs)
    assert (pair["model"], pair["devices"]) == ("NVIDIA H200", "2")
    mixed = dict(fingerprint(facts, ("cuda:0", "cuda:2")).pairs)
    assert (mixed["model"], mixed["ECC"]) == ("NVIDIA H200 + NVIDIA H100", "on + unknown")
    with pytest.raises(KeyError):
        fingerprint(make.facts(), ("cuda:7",))


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("h200*-[hq]*.jsonl.gz")), ids=lambda path: path.name)
def test_all_recordings_of_one_model_have_one_fingerprint(file):
    first = read_run(RECORDINGS / "h200-quick.jsonl.gz").manifest.facts
    here = fingerprint(read_run(file).manifest.facts, ("cuda:0",))
    assert here.differences(fingerprint(first, ("cuda:0",))) == ()
