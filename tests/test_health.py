"""The health of devices: the rules, NVML's readings through a fake library, and what the commands make of them."""

import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import _fake_nvml as fake
import _fake_sysfs as sysfs
import _files as files
import _make as make
import pytest
from _command import in_process

from gpubench import plugins
from gpubench.analysis import trust
from gpubench.base.errors import DeviceError, Unavailable
from gpubench.cli import _machine, _print
from gpubench.measuring import examination, health, inventory, plan
from gpubench.model import Device, Facts, Remark, Settings
from gpubench.model.store import RunWriter, read_run
from gpubench.plugins.collector import HealthReading, HealthSign
from gpubench.tools import health as run_health
from gpubench.tools import session

HERE = Path(__file__).parent
DOCUMENT = (HERE.parent / "docs/health.md").read_text()
PCI = "0000:3b:00.0"


def judged(**values):
    readings = [HealthReading(HealthSign[name], value) for name, value in values.items()]
    return health.judge("cuda:0", health.checked(readings))


def texts(device_health, severity):
    return [finding.text for finding in device_health.of(severity)]


# ---- the rules


def test_every_sign_has_a_rule_with_a_source_and_where_it_can_be_broken_an_advice():
    assert set(health.RULES) == set(HealthSign)
    assert all(rule.source and rule.name for rule in health.RULES.values())
    assert [r.name for r in health.RULES.values() if {r.severity, r.rise} != {"ok"} and not r.advice] == []


def test_the_document_has_a_row_for_each_rule_with_its_severities_and_its_source():
    rows = {line.strip("| ").split(" | ")[0]: line for line in DOCUMENT.splitlines() if line.startswith("| ")}
    judged_alone = [rule for sign, rule in health.RULES.items() if sign not in health._HELPERS]
    wrong = [
        rule.name
        for rule in judged_alone
        if not rows.get(rule.name, "").endswith(f"| {rule.severity} | {rule.rise} | {rule.source} |")
    ]
    assert wrong == []


@pytest.mark.parametrize("sign", [sign for sign in HealthSign if not sign.startswith(("pcie", "busy"))])
def test_a_reading_of_zero_is_healthy_and_one_above_it_is_what_the_rule_says(sign):
    assert judged(BUSY=0.0, **{sign.name: 0.0}).severity == "ok"
    assert judged(BUSY=0.0, **{sign.name: 1.0}).severity == health.RULES[sign].severity


SLOW_LINK = {"PCIE_GENERATION": 1.0, "PCIE_GENERATION_MOST": 5.0}


@pytest.mark.parametrize(
    ("values", "severity", "text"),
    [
        ({"POWER_BRAKE": 1.0, "BUSY": 0.0}, "sick", "power brake: yes"),
        ({"POWER_BRAKE": 1.0, "BUSY": 1.0}, "warning", "power brake: yes"),
        ({"POWER_BRAKE": 1.0, "BUSY": None}, "warning", "power brake: yes"),
        ({"PCIE_WIDTH": 8.0, "PCIE_WIDTH_MOST": 16.0}, "warning", "PCIe link: 8 of 16 lanes"),
        ({"PCIE_WIDTH": 16.0, "PCIE_WIDTH_MOST": 16.0}, "ok", "PCIe link: 16 of 16 lanes"),
        ({**SLOW_LINK, "BUSY": 1.0}, "warning", "PCIe generation: 1 of 5"),
        ({**SLOW_LINK, "BUSY": 0.0}, "ok", "PCIe generation: 1 of 5 at idle; it rises under load"),
        ({"PCIE_WIDTH": 8.0, "PCIE_GENERATION": 1.0, "BUSY": 1.0}, "ok", None),  # of unknown highest values
    ],
)
def test_a_slowdown_and_a_link_are_judged_beside_the_load(values, severity, text):
    assert judged(**values).severity == severity
    assert text is None or texts(judged(**values), severity) == [text]


ABSURD = [math.nan, math.inf, -1, -1.0, 2.0**32 - 1, 2**64 - 1, 10**400, "3", b"3", 1 + 2j, object()]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{type(value).__name__} {value!s:.9}")
def test_an_impossible_reading_is_unavailable(value):
    (finding,) = judged(ECC_UNCORRECTED=value).findings
    assert finding.severity == "unavailable"
    assert finding.value is None
    assert "the driver reported" in finding.text


@pytest.mark.parametrize("readings", [None, 3, "text", [3], [("ecc", 1.0)], [HealthReading("ecc", 1.0)]])
def test_a_collector_that_returns_no_health_readings_is_unavailable(readings):
    with pytest.raises(Unavailable, match="HealthReading"):
        health.checked(readings)


def test_an_endless_sequence_of_readings_ends_and_the_first_of_a_sign_counts():
    def endless():
        count = 0
        while True:
            yield HealthReading(HealthSign.ECC_UNCORRECTED, count := count + 1)

    (finding,) = health.judge("cuda:0", health.checked(endless())).findings
    assert finding.value == 1


# ---- before and after


ECC = "uncorrected ECC errors since the driver was loaded: 3, before the run 1"
LANES = "PCIe link: 8 of 16 lanes, before the run 16 of 16 lanes"


@pytest.mark.parametrize(
    ("before", "after", "severity", "text"),
    [
        ({"ECC_UNCORRECTED": 1.0}, {"ECC_UNCORRECTED": 3.0}, "sick", ECC),
        ({"PCIE_REPLAYS": 4.0}, {"PCIE_REPLAYS": 6.0}, "warning", "PCIe replays: 6, before the run 4"),
        ({"PCIE_WIDTH": 16.0, "PCIE_WIDTH_MOST": 16.0}, {"PCIE_WIDTH": 8.0, "PCIE_WIDTH_MOST": 16.0}, "sick", LANES),
        ({"ECC_UNCORRECTED": 0.0}, {"LOST": 1.0}, "sick", "the driver lost the device: yes, before the run no"),
    ],
)
def test_an_error_that_appears_during_a_run_is_reported_with_both_numbers(before, after, severity, text):
    assert texts(health.risen(judged(**before), judged(**after)), severity) == [text]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ECC_UNCORRECTED": 3.0}, {"ECC_UNCORRECTED": 3.0}),
        ({"ECC_UNCORRECTED": 3.0}, {"ECC_UNCORRECTED": 0.0}),
        ({"ECC_UNCORRECTED": None}, {"ECC_UNCORRECTED": 3.0}),
        ({"ECC_UNCORRECTED": 0.0}, {"ECC_UNCORRECTED": None}),
        ({}, {"ECC_UNCORRECTED": 3.0}),
        ({"PROCESSES": 0.0}, {"PROCESSES": 2.0}),
        ({"POWER_BRAKE": 0.0}, {"POWER_BRAKE": 1.0}),
    ],
)
def test_readings_that_did_not_rise_or_cannot_be_compared_are_no_errors_of_the_run(before, after):
    assert health.risen(judged(**before), judged(**after)).findings == ()


# ---- NVML, through the real binding and a fake library

SCENES = {  # states of the library before and after a run → the findings before, and the errors that appeared
    "healthy": (("", ""), ("ok", [], [])),
    "ecc": (("ecc.volatile 2", "ecc.volatile 5"), ("sick", ["uncorrected ECC errors since the driver was loaded: 2"],
            ["uncorrected ECC errors since the driver was loaded: 5, before the run 2"])),
    "lifetime": (("ecc.aggregate 7", "ecc.aggregate 7"), ("warning",
                 ["uncorrected ECC errors in the life of the device: 7"], [])),
    "remap pending": (("pending 1", "pending 1"), ("sick", ["a memory row waits to be remapped: yes"], [])),
    "remap failure": (("failure 1", "failure 1"), ("sick", ["a memory row cannot be remapped: yes"], [])),
    "rows": (("rows 1", "rows 2"), ("ok", [], ["memory rows remapped after uncorrected errors: 2, before the run 1"])),
    "pages": (("rows !3\npages 4\npages.pending 1", "rows !3\npages 4"), ("sick", [
        "memory pages wait to be retired: 1", "memory pages retired after uncorrected errors: 4"], [])),
    "reset": (("field.230 1", ""), ("sick", ["the driver asks for a recovery: yes (reset the GPU)"], [])),
    "restart": (("field.230 2", ""), ("sick", ["the driver asks for a recovery: yes (restart the machine)"], [])),
    "unknown action": (("field.230 99", ""), ("sick", ["the driver asks for a recovery: yes (action 99)"], [])),
    "slowdown": (("reasons 9", ""), ("sick", ["hardware slowdown: yes"], [])),
    "thermal": (("reasons 73", ""), ("sick", ["thermal slowdown by the hardware: yes"], [])),
    "brake": (("reasons 137", ""), ("sick", ["power brake: yes"], [])),
    "power cap": (("reasons 4", ""), ("ok", [], [])),
    "busy": (("reasons 137\nbusy 100\ngeneration 5", ""), ("warning", ["power brake: yes"], [])),
    "processes": (("processes 2", ""), ("warning", [
        "programs that compute on the device: 2 (process numbers 1000, 1001)"], [])),
    "width": (("width 8", "width 4"), ("warning", ["PCIe link: 8 of 16 lanes"],
              ["PCIe link: 4 of 16 lanes, before the run 8 of 16 lanes"])),
    "link down": (("link.3 0", "link.3 0\nlink.7 0"), ("warning", [
        "links to other devices that are down: 1 (link 3)"],
        ["links to other devices that are down: 2 (link numbers 3, 7), before the run 1 (link 3)"])),
    "no link connected": (("links 0", "links 0"), ("ok", [], [])),
    "no links": (("links !3", "links !3"), ("ok", [], [])),
    "link errors": (("", "field.161 1\nfield.163 1"), ("ok", [], [
        "replays on the links to other devices: 18, before the run 0",
        "CRC errors on the links to other devices: 18, before the run 0"])),
    "newer link field": (("field.162 !3", "field.162 !3\nfield.215 1"), ("ok", [], [
        "recoveries of links to other devices: 18, before the run 0"])),
    "xid": (("event 13", "event 13\nevent 79\nevent 31"), ("warning", [
        "driver errors that point to the hardware: 1 (Xid 48)"], [
        "driver errors that point to the hardware: 2 (Xid 48, 79), before the run 1 (Xid 48)",
        "driver errors that programs cause: 1 (Xid 31), before the run 0"])),
    "inforom": (("inforom !14", ""), ("sick", ["corrupted InfoROM: yes"], [])),
    "lost": (("ecc.volatile !15", ""), ("sick", ["the driver lost the device: yes (GPU is lost)"], [])),
    "lost at once": (("handle !15", ""), ("sick", ["the driver lost the device: yes (GPU is lost)"], [])),
    "lost meanwhile": (("", "replays !15"), ("ok", [], [
        "the driver lost the device: yes (GPU is lost), before the run no"])),
    "absurd": (("ecc.volatile 18446744073709551615\nwidth 4294967295\nrows 4294967295", "ecc.volatile 1"),
               ("ok", [], [])),
    "refused": (("inforom !4\necc.volatile !3\nreplays !999\nwidth !77\nreasons !4\nbusy !3\nprocesses !4\nevents !4",
                 ""),
                ("ok", [], [])),
}  # fmt: skip
LOG = (
    b"6,1,10,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=7, An uncorrectable error\n"
    b"6,2,20,-;NVRM: Xid (PCI:0000:5c:00): 79, pid=7, another GPU\n SUBSYSTEM=pci\n"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc to build the fake library with")
    return fake.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def scenes(library, tmp_path_factory):
    """Return for each scene the health before and after and the new errors; one child process reads all."""
    folder = tmp_path_factory.mktemp("scenes")
    state, log = folder / "state", folder / "log"
    log.write_bytes(LOG)
    states = [(*states, str(log if name == "xid" else folder / "none")) for name, (states, _) in SCENES.items()]
    command = [sys.executable, str(HERE / "_nvml_scenes.py"), json.dumps(states), str(state)]
    done = subprocess.run(command, env=fake.environment(library, state), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(SCENES, json.loads(done.stdout), strict=True))


def finding_lines(document, *severities):
    return [
        f"{finding['name']}: {finding['shown']}"
        for finding in document["findings"]
        if finding["severity"] in severities
    ]


@pytest.mark.parametrize("scene", SCENES)
def test_nvml_reports_each_sickness_before_a_run_and_each_that_appears_during_it(scenes, scene):
    _, (severity, before, during) = SCENES[scene]
    first, _, rose = scenes[scene]
    seen = finding_lines(first, "sick", "warning")
    assert sorted(seen) == sorted(before)
    assert sorted(finding_lines(rose, "sick", "warning")) == sorted(during)
    worst = [finding["severity"] for finding in first["findings"] if finding["severity"] in ("sick", "warning")]
    assert severity == ("sick" if "sick" in worst else "warning" if worst else "ok")


def test_numbers_that_cannot_be_true_and_calls_that_are_refused_are_unavailable_one_by_one(scenes):
    absurd = finding_lines(scenes["absurd"][0], "unavailable")
    assert len(absurd) == 3
    assert all("the impossible value" in text for text in absurd)
    refused = finding_lines(scenes["refused"][0], "unavailable")
    assert "PCIe replays: Unknown Error" in refused
    assert "corrupted InfoROM: Insufficient Permissions" in refused
    assert "PCIe link: error 77" in refused, "an error that this binding does not know"
    assert "uncorrected ECC errors since the driver was loaded: Not Supported" in refused
    assert "the driver lost the device: no" in finding_lines(scenes["refused"][0], "ok"), (
        "the rest is read all the same"
    )


def test_a_kernel_log_that_this_user_may_not_read_leaves_the_events_from_now_on(scenes):
    events = [text for text in finding_lines(scenes["healthy"][0], "ok") if "driver errors" in text]
    assert all("0 (from now on; " in text and "No such file" in text for text in events)


# ---- the process that asks

CARD = Device("card:0", "card", "NVIDIA pretended", "sm_90", uuid="GPU-0f0e0d0c-0b0a-0908-0706-050403020100", pci=PCI)
HOST = Device("host", "host", "a processor", "x86_64")


@pytest.fixture
def nvml(library, tmp_path, monkeypatch):
    """Give child processes the fake library; the yielded function sets what it answers."""
    state = tmp_path / "state"
    for name, value in fake.environment(library, state, HERE / "plugin").items():
        monkeypatch.setenv(name, value)

    def write(**answers):
        fake.write(state, **answers)

    write()
    return write


def test_only_devices_that_a_driver_knows_are_asked_and_no_process_starts_for_others():
    with examination.Examination([HOST]) as asked:
        assert asked._child is None
        assert asked.read() == ()


def test_reading_a_driver_that_hangs_ends_after_a_time_limit(nvml):
    nvml(ecc_volatile="hang")
    with examination.Examination([CARD], patience_s=0.3) as asked:
        (hung,) = asked.read()
    assert (hung.severity, hung.unavailable) == ("unavailable", "the driver did not answer within 0.3 s")


@pytest.mark.slow
def test_a_library_that_crashes_costs_one_reading_and_the_next_one_works(nvml):
    nvml(width="crash")
    with examination.Examination([CARD]) as asked:
        (crashed,) = asked.read()
        assert crashed.findings == ()
        assert "the process that asked the driver ended: killed by SIGABRT" in crashed.unavailable
        nvml()
        (again,) = asked.read()
    assert again.severity == "ok"


@pytest.mark.slow
def test_a_driver_that_does_not_start_is_reported_with_its_own_message(nvml):
    nvml(init="!999")
    (card,) = examination.examine([CARD])
    assert "NVML does not start (Unknown Error)" in card.unavailable


# ---- a run and its gate


@pytest.fixture
def planned(nvml, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / "plugin"))
    settings = Settings(suites=("faults",), devices=("card:0",), tier="smoke", filters=("faults/good",))
    return plan.make(Facts((CARD, HOST)), settings)


def test_errors_that_appear_during_a_run_are_in_its_file_and_a_gate_refuses_it(nvml, planned, tmp_path):
    nvml(width=8)
    lines = []

    def break_the_card(progress):
        nvml(width=8, ecc_volatile=2)

    path = tmp_path / "run.jsonl.gz"
    run = session.measure(planned, path, ["gpubench"], break_the_card, tell=lines.append)
    assert lines == ["card:0 has a warning: PCIe link: 8 of 16 lanes; `gpubench doctor` says what to do"]
    sources = (trust.HEALTH_SOURCE, trust.STATE_SOURCE)
    remarks = [(remark.source, remark.words) for remark in run.remarks if remark.source in sources]
    errors = "uncorrected ECC errors since the driver was loaded: 2, before the run 0"
    assert remarks == [(trust.STATE_SOURCE, "PCIe link: 8 of 16 lanes"), (trust.HEALTH_SOURCE, errors)]
    assert any(errors in line for line in run.messages), "a reader is told"
    with pytest.raises(DeviceError, match="was measured on a sick device") as refused:
        run_health.refuse_recorded([path])
    assert refused.value.exit_status == 6


def test_a_gate_measures_nothing_on_a_sick_device(planned, monkeypatch):
    monkeypatch.setattr(run_health, "examine", lambda devices: (replace(judged(REMAP_PENDING=1.0), device="card:0"),))
    with pytest.raises(DeviceError, match=r"card:0 is sick \(a memory row waits to be remapped: yes\)") as refused:
        run_health.refuse_sick(planned)
    assert refused.value.exit_status == 6


def test_warnings_and_runs_of_healthy_devices_pass_the_gate(tmp_path):
    path = files.write(tmp_path / "run.jsonl", make.result(), end=False)
    writer, _ = RunWriter.resume(path)
    with writer:
        writer.remark(Remark(0.1, "event", trust.STATE_SOURCE, "cuda:0", "PCIe link: 8 of 16 lanes"))
        writer.remark(Remark(0.2, "absent", trust.HEALTH_SOURCE, "cuda:0", "unavailable: no driver"))
    assert len(read_run(path).remarks) == 2
    run_health.refuse_recorded([path])


# ---- what the commands say


@pytest.fixture
def run_command(nvml, tmp_path):
    """Return a call of gpubench in a folder of its own, beside the fake NVML."""
    return partial(in_process, cwd=tmp_path)


@pytest.mark.slow
def test_doctor_explains_a_sick_device_and_prints_the_command_that_repairs_it(nvml, run_command):
    nvml(pending=1)
    text = run_command("doctor").stdout
    assert "card:0: sick (21 of 21 readings are available)" in text
    assert (
        "    sick: a memory row waits to be remapped: yes\n        Stop the programs on the device and reset it" in text
    )
    assert f"        $ sudo nvidia-smi --gpu-reset --id={CARD.uuid}\n" in text
    (device,) = json.loads(run_command("doctor", "--json").stdout)["health"]
    assert [finding["severity"] for finding in device["findings"] if finding["sign"] == "remap.pending"] == ["sick"]


def doctor_lines(*healths):
    console = _print.out()
    with console.capture() as capture:
        console.print(*(part for card_health in healths for part in _machine._health_parts(card_health)), sep="\n")
    return [line.rstrip() for line in capture.get().splitlines()]


def test_doctor_names_readings_that_are_unavailable_and_why():
    silent = health.Health("cuda:0", (), "the driver did not answer within 20 s")
    assert doctor_lines(silent, judged(ECC_UNCORRECTED=None, REMAP_PENDING=0.0)) == [
        "cuda:0: unavailable: the driver did not answer within 20 s",
        "cuda:0: healthy (1 of 2 readings are available)",
        "    unavailable: uncorrected ECC errors since the driver was loaded: the driver does not report it",
    ]


def test_the_page_shows_what_doctor_prints_of_a_healthy_and_of_a_sick_device():
    reset = "sudo nvidia-smi --gpu-reset --id=GPU-0f0e0d0c-0b0a-0908-0706-050403020100"
    signs = [sign for sign in HealthSign if not sign.startswith("pages")]  # memory that remaps rows retires no pages
    normal = {sign: 16.0 if sign.startswith("pcie.width") else 0.0 for sign in signs}
    sick = normal | {HealthSign.REMAP_PENDING: 1.0}
    printed = [
        line
        for device, values in (("cuda:0", normal), ("cuda:1", sick))
        for line in doctor_lines(
            health.judge(device, [HealthReading(*reading, command=reset) for reading in values.items()])
        )
    ]
    assert "".join(f"    {line}\n" for line in ["health", *printed]) in DOCUMENT


# ---- a real GPU


@pytest.mark.gpu
def test_a_real_gpu_answers_most_readings_and_the_second_time_at_once():
    devices = examination.examinable(inventory.facts().devices)
    with examination.Examination(devices) as asked:
        healths = asked.read()
        took = []
        for _ in range(5):  # the least disturbed attempt counts
            begun = time.monotonic()
            again = asked.read()
            took.append(time.monotonic() - begun)
    assert min(took) < 0.3 * len(devices)
    assert [device.device for device in healths] == [device.id for device in devices]
    for device, later in zip(healths, again, strict=True):
        assert device.severity in ("ok", "warning"), device
        assert len(device.of("unavailable")) <= 5, device.of("unavailable")
        assert health.risen(device, later).of("sick") == ()


# ---- AMD, through a simulated /sys


MI300X = Device("cuda:0", "cupy", "AMD Instinct MI300X", "gfx942", pci=sysfs.pci(0))


def health_of(root, device):
    """Return a function that judges the health of a device by the files of amdgpu."""
    source = type(plugins.load("collectors", "amd"))(root).health([device])
    return lambda: health.judge(device.id, health.checked(source.read(device)))


@pytest.fixture
def mi300x(tmp_path):
    """Return the folder of the driver's files of an MI300X, and a function that judges its health."""
    root = sysfs.build(tmp_path, "mi300x", count=1)
    return root / "sys/bus/pci/devices" / sysfs.pci(0), health_of(root, MI300X)


def test_programs_on_an_mi300x_are_named(tmp_path):
    root = sysfs.build(tmp_path, "mi300x")
    sysfs.process(root, 71, {0: 0, 1: 2**30})
    sysfs.process(root, 72, {0: 2**30, 1: 0})
    result = health_of(root, replace(MI300X, id="rocm:1", pci=sysfs.pci(1)))()
    assert texts(result, "warning") == ["programs that compute on the device: 1 (process numbers 71)"]


@pytest.mark.parametrize(
    ("file", "content", "severity", "message"),
    [
        ("ras/umc_err_count", "ue: 3\nce: 9", "sick", "uncorrected ECC errors since the driver was loaded: 3 (in umc)"),
        ("ras/gpu_vram_bad_pages", "0x00000001 : 0x00001000 : P", "sick", "memory pages wait to be retired: 1"),
        (
            "ras/gpu_vram_bad_pages",
            "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : R",
            "warning",
            "memory pages retired after uncorrected errors: 2",
        ),
        ("current_link_width", "8", "warning", "PCIe link: 8 of 16 lanes"),
        ("current_link_speed", "2.5 GT/s PCIe", "warning", "PCIe generation: 1 of 5"),
        ("current_link_width", "255", "unavailable", "PCIe link: the driver reported the impossible value 255"),
        ("pcie_replay_count", "-1", "unavailable", "PCIe replays: the driver reported the impossible value -1"),
    ],
)
def test_the_files_of_amdgpu_report_each_sickness(mi300x, file, content, severity, message):
    folder, read = mi300x
    (folder / file).write_text(f"{content}\n")
    assert texts(read(), severity) == [message]


def test_errors_of_an_mi300x_that_appear_during_a_run_are_reported_and_are_unavailable_without_files(mi300x):
    folder, read = mi300x
    before = read()
    assert before.severity == "ok"
    assert texts(before, "ok")[0] == "uncorrected ECC errors since the driver was loaded: 0"
    (folder / "ras/gfx_err_count").write_text("ue: 1\nce: 0\n")
    messages = ["uncorrected ECC errors since the driver was loaded: 1 (in gfx), before the run 0"]
    assert texts(health.risen(before, read()), "sick") == messages
    for path in folder.glob("ras/*"):
        path.unlink()
    assert texts(read(), "unavailable") == [
        "uncorrected ECC errors since the driver was loaded: the driver has no files for errors"
    ]
