"""Numbers, versions, causes and gpubench's own sentences are shared as they are; names become stable pseudonyms."""

import ast
import dataclasses
import hashlib
import json
import re
import stat
import time
import timeit
from pathlib import Path
from typing import Annotated

import _make as make
import pytest

from gpubench import model, plugins
from gpubench.analysis import trend
from gpubench.base.errors import FileError
from gpubench.base.walk import WORD, with_texts
from gpubench.judging import comparison, fleet, judge
from gpubench.knowledge.key_figures import OF_GPU, OF_HOST
from gpubench.model import Case, Settings, SuiteInfo, store
from gpubench.model import fleet as fleet_model
from gpubench.tools import foreign, health, sharing
from gpubench.tools.fleet import judging
from gpubench.tools.sharing import FileNames, shared

SALT = b"salt of a test"
UUID = "GPU-3f1d2a4b-5c6d-7e8f-9a0b-1c2d3e4f5a6b"
ROOT = Path(__file__).parents[1]
ROOMS = ("gpubench", "suites", "collectors", "reports")  # the packages that a traceback of a case may pass through
NAMED = """authorization cookie token password passphrase pwd secrets credentials api-key access-key private-key ssh-key
hostname nodename nodelist fqdn username logname user= login= account= owner= host= node= server= proxy= serial s/n
asset-tag board-id machine-id instance-id container-id unique-id hive-id blade chassis employee job rack room slot tray
uid uuid """
NAMED = re.sub(r"\s", ": {0}\n", NAMED).replace("=:", " =")
SHARED = (
    "bandwidth/triad[size=1GiB,dtype=float32]",
    "53.4 GB/s of 63.0 GB/s, FLOP/s, J/GB, B/s",
    "cat /proc/stat, /dev/nvidia0, nvidia-smi --query-gpu=power.draw.instant --format=csv",
    "std::vector<float> cannot be cuda::std::array; a::b",
    "the host processor's user time, as root",
    "needs 2 devices, here is 1: cuda:0",
    "driver 580.65.06, cuBLAS 13.1.0.3, kernel 6.18.44-fc-v657-gpu",
    "1.5e-3 s at 12:34:56, 15009316864 bytes of weights, 1048576 of 8388608 bytes",
    "/dev/shm is full, of 64 MiB; see df /dev/shm",
    "torch.cuda.OutOfMemoryError; LinAlgError: Singular matrix; cuda.api.runtime.CUDARuntimeError",
    "driver 580.65.06, CUDA 13.0, nccl 2.27.7+cuda13.0, 1.2.3.post4, 6.8.0-45-generic, libcudart.so.13",
    "nvml.clock.sm on cuda:0 and cuda:12: 1980 MHz; gpm.dram, host.cpu.busy; 1/3, 3/4, and/or, n/a, TX/RX",
    "CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered",
    "gemm/skinny[m=8,n=8192,k=8192,dtype=float8_e4m3,weights=int4]: killed by SIGSEGV; last line: Fatal Python error",
    "the user's password is not asked for; set a token, a key and a secret; the host: it is slow",
    "--filter 'dtype=bf*' --replicates 10, threshold=2 %, q=0.05, LD_LIBRARY_PATH, CUDA_VISIBLE_DEVICES=0",
    "2026-01-02T03:04:05+00:00, 20260102T030405Z-gate, 2026-01-02",
    "ratio 1:2, 16:9, 3:1; x86-64, sm_90a, gfx942, sha256, utf-8, float8_e4m3",
    "AMD EPYC 9654 96-Core Processor, Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz, Intel(R) Core(TM) i9-13900K",
    "NVIDIA A100-SXM4-80GB, Tesla V100-SXM2-32GB, AMD Instinct MI300X OAM, NVIDIA RTX PRO 6000 Blackwell, NVIDIA L40S",
    "core clock (cupti): 1980 MHz; tokens=4096, 4096 tokens: 128, batch:64; docs/profile.md",
    "hipErrorNoBinaryForGpu, NVML_ERROR_GPU_IS_LOST, CUBLAS_STATUS_NOT_SUPPORTED, ENOSPC, No space left on device",
)
TRACEBACK = """Traceback (most recent call last):
  File "/home/amelia/.venv/lib/python3.12/site-packages/cupy/core.py", line 7, in f
  File "/home/amelia/src/acme/suites/gemm/_shapes.py", line 219, in g
  File "/home/amelia/gpubench/acme/secret.py", line 3, in h
RuntimeError: out of memory on gpu17"""


def text_run(text=""):
    """Return a run of one machine with this text wherever gpubench composes sentences."""
    device = make.device(
        uuid=UUID, pci="0000:9b:00.0", details=(("serial", "1652922013123"), ("power.limit_w", "700.0"))
    )
    facts = make.facts(
        device,
        make.device("host", "Example CPU"),
        host=(("hostname", "gpu17.acme.example"), ("system", "Linux 6.18.44-fc-v657-gpu"), ("cpus", "64")),
        versions=(("driver", "580.65.06"), ("nvcomp", "6.0.0.12"), ("cublas", "13.1.0.3")),
    )
    result = make.result(
        make.timing(1e-3, 2e-3, moved=1e6),
        of=make.case(text=text),
        status="failed",
        cause="crash",
        reason=text,
        notes=(("traceback", text),),
    )
    suites = tuple(SuiteInfo(name, "x") for name in ("bandwidth", "gemm"))
    run = make.run(result, facts=facts, suites=suites, argv=("/home/amelia/bin/gpubench", "run", "--data=acme/a.bin"))
    return dataclasses.replace(run, warnings=("/data/acme/r.jsonl: line 4: the last line is incomplete", text))


@pytest.mark.parametrize("text", SHARED)
def test_a_sentence_of_gpubench_is_shared_as_it_is(text):
    run = shared(text_run(text), SALT, ("amelia", "gpu17.acme.example"))
    assert {run.results[0].reason, run.results[0].case.param("text"), run.warnings[1]} == {text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see /data/acme/weights.safetensors: line 3", "see (left out): line 3"),
        ("cannot import name 'acme' from 'zebra'", "cannot import name '(left out)' from '(left out)'"),
        ("alpha zebra amelia acme; 3 of 4", "alpha (left out); 3 of 4"),
        ("password: memory, token=bytes, --user device", "password: (left out), token=(left out), --user (left out)"),
        ("serial number 123, asset tag: 7", "serial number (left out), asset tag: (left out)"),
        (NAMED.format("AB12"), NAMED.format("(left out)")),
        ("rack R12, node H100A, job 4242; node 12", "rack (left out), node (left out), job (left out); node 12"),
        ("memory.cluster.local, /srv/kernel/results.csv, device/results.csv", "(left out), (left out), (left out)"),
    ],
)  # fmt: skip
def test_words_of_users_and_libraries_are_left_out_of_a_sentence(text, expected):
    assert shared(text_run(text), SALT).results[0].reason == expected


def test_a_word_of_gpubench_that_is_a_name_of_this_machine_is_hidden():
    facts = make.facts(host=(("hostname", "memory.example"),))
    run = shared(make.run(make.result(reason="MEMORY is full, memory_0 too"), facts=facts), SALT, ("kernel",))
    host = dict(run.manifest.facts.host)["hostname"]
    assert run.results[0].reason == f"{host} is full, (left out) too"
    named = shared(make.run(make.result(reason="the kernel")), SALT, ("kernel",))
    assert named.results[0].reason.startswith("the user-")


def test_pseudonyms_stand_for_devices_and_paths_alone():
    assert shared(text_run("x y"), SALT).warnings[0] == "line 4: the last line is incomplete"
    run = shared(text_run(f"lost {UUID}"), SALT)
    assert run.results[0].reason == f"lost {run.manifest.facts.devices[0].uuid}"
    assert shared(make.run(make.result()), SALT).manifest.facts.devices[0].uuid == ""
    cases = [make.case(data=f"/data/acme/{name}") for name in ("a", "b")]
    run = shared(make.run(*(make.result(of=case) for case in cases)), SALT)
    assert len({result.key for result in run.results}) == 2
    assert "acme" not in repr(run)
    settings = Settings(("gemm", "/data/acme/secret/my_suite.py", "/data/acme/zebra.py"), ("cuda:0",))
    suites = (SuiteInfo("gemm", ""), SuiteInfo("my_suite", ""))
    run = shared(make.run(settings=settings, suites=suites), SALT)
    assert run.manifest.settings.suites[:2] == ("gemm", "my_suite.py"), "a suite in a file is reduced to its name"
    assert not re.search("acme|zebra", repr(run))


def test_a_traceback_keeps_the_lines_and_the_files_of_gpubench():
    text = shared(text_run(TRACEBACK), SALT).results[0].reason
    assert 'File "(left out)", line 7' in text
    assert 'File "suites/gemm/_shapes.py", line 219' in text
    assert 'File "(left out)", line 3' in text
    assert "RuntimeError: out of memory on host-" in text


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_gpubench_is_kept_in_a_traceback(room):
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / room).rglob("*.py")]
    run = make.run(make.result(notes=tuple(("n", f'  File "/home/amelia/src/{file}", line 7, in f') for file in files)))
    assert [text for _, text in shared(run, SALT).results[0].notes] == [
        f'  File "{file}", line 7, in f' for file in files
    ]


def test_sharing_changes_no_number(tmp_path):
    before, after = text_run(TRACEBACK), shared(text_run(TRACEBACK), SALT)
    assert [result.series for result in after.results] == [result.series for result in before.results]
    assert after.samples == before.samples
    assert (after.manifest.started, after.manifest.started_at) == (before.manifest.started, before.manifest.started_at)
    facts = after.manifest.facts
    assert dict(facts.devices[0].details)["power.limit_w"] == "700.0"
    assert facts.versions == before.manifest.facts.versions
    assert facts.host[1:] == before.manifest.facts.host[1:]
    assert after.manifest.argv == ("gpubench", "run")
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(store.encode_run(dataclasses.replace(after, warnings=()), packed=True))
    assert store.read_run(path) == dataclasses.replace(after, warnings=()), "it can be written and read"


def test_the_names_of_profiled_kernels_are_shared_like_the_ids_of_their_cases():
    kernel = "void at::native::elementwise_kernel<128, 4>(at::TensorIteratorBase&, {lambda(float)#1}, 32u, char*)"
    case = Case("profile", "kernel", (("name", "elementwise_kernel#2"),))
    run = shared(make.run(make.result(of=case, notes=(("name", kernel), ("other", kernel)))), SALT)
    assert run.results[0].case == case
    assert run.results[0].notes[0] == ("name", kernel)


def test_the_names_of_a_collector_of_your_own_are_shared_in_fields_and_in_texts():
    counter = dataclasses.replace(make.POWER, name="mytool.frobs")
    samples = make.samples((0.0, 1.0), power=(1.0, 2.0))
    samples = dataclasses.replace(samples, collector="mytool", columns=(("mytool.frobs", (1.0, 2.0)),))
    result = make.result(of=make.case("frob", suite="mine", by="x"), reason="frob: no mytool.frobs of zebra")
    run = shared(dataclasses.replace(make.run(result, counters=(counter,)), samples=(samples,)), SALT)
    assert (run.manifest.counters[0].name, run.samples) == ("mytool.frobs", (samples,))
    assert run.results[0].reason == "frob: no mytool.frobs of (left out)"


@pytest.mark.parametrize("name", ["superbench.jsonl", "transferbench-1.62.txt", "nvbandwidth-nodes.txt", "aiperf.json"])
def test_the_ids_of_imported_cases_and_of_their_devices_are_shared(name):
    run = foreign.run([foreign.read(ROOT / "tests/imports" / name, None)], ["gpubench", "import", name])
    assert [result.key for result in shared(run, SALT).results] == [result.key for result in run.results]


def test_one_device_has_one_pseudonym_in_every_run_of_one_salt_and_another_in_another():
    first, again = (shared(text_run(text), SALT) for text in ("a", "b"))
    with_another_salt = shared(text_run("a"), b"another salt")
    assert first.manifest.facts.devices[0].uuid == again.manifest.facts.devices[0].uuid
    assert re.fullmatch(r"device-[0-9a-f]{12}", first.manifest.facts.devices[0].uuid)
    assert first.manifest.facts.devices[0].uuid != with_another_salt.manifest.facts.devices[0].uuid
    assert first.manifest.facts.devices[1].uuid.startswith("device-"), "a host joins by its name"
    assert first.manifest.facts.devices[0].uuid != first.manifest.facts.devices[1].uuid
    assert hashlib.sha256(UUID.encode()).hexdigest()[:12] not in first.manifest.facts.devices[0].uuid, "no plain hash"


def test_names_of_run_files_stay_distinct_and_those_of_gpubench_stay():
    names = ("20260102T030405Z-gate.jsonl.gz", "zebra.jsonl", "zebra2.jsonl", "quick.jsonl.gz")
    kept, first, second, quick = shared(FileNames(names), SALT).names
    assert (kept, quick) == (names[0], names[3])
    manifest = text_run().manifest
    (of_host,) = shared(FileNames(("gpu17.acme.example.jsonl",)), SALT, (), [manifest]).names
    assert of_host == f"{dict(shared(manifest, SALT).facts.host)['hostname']}.jsonl"
    assert re.fullmatch(r"file-[0-9a-f]{12}\.jsonl", first)
    assert first != second
    assert all(
        name.startswith("file-") for name in shared(FileNames(("R12.jsonl", "4711.jsonl", "C7-12.gz")), SALT).names
    )


def test_only_the_settings_of_a_device_that_gpubench_knows_are_kept():
    known = (("power.limit_w", "700.0"), ("ecc", "on"), ("cache.l2", "1"))
    names = ("node name", "rack", "board part number", "location", "serial", "acme.place")
    device = make.device(details=(*known, *((name, "R12") for name in names)))
    details = dict(shared(make.run(make.result(), facts=make.facts(device)), SALT).manifest.facts.devices[0].details)
    assert [details.pop(name) for name, _ in known] == [text for _, text in known]
    assert all(re.fullmatch(r"name-[0-9a-f]{12}", text) for text in details.values())
    assert len(details) == len(names)


def test_every_field_with_a_rule_exists():
    modules = (model, fleet_model, trend, comparison, judge, fleet, judging, sharing)
    rules = dict(sharing._Sharing((), SALT, (), ())._rules())
    for place in rules:
        owner, _, name = place.partition(".")
        (kind,) = {getattr(module, owner) for module in modules if hasattr(module, owner)}
        assert name in {field.name for field in dataclasses.fields(kind)}, place


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "gpubench"


def test_a_salt_is_made_once_is_readable_by_the_user_alone_and_never_the_same(config, tmp_path, monkeypatch):
    salt = health.salt()
    assert health.salt() == salt
    assert len(salt) == 32
    assert stat.S_IMODE((config / "salt").stat().st_mode) == 0o600
    assert [path.name for path in config.iterdir()] == ["salt"]
    first = health.salt()
    (config / "salt").unlink()
    assert health.salt() != first
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match="set XDG_CONFIG_HOME"):
        health.salt()


@pytest.mark.parametrize("damaged", ["", "not hexadecimal", "abcd", "é" * 64])
def test_a_damaged_salt_is_refused_and_never_replaced(config, damaged):
    config.mkdir(parents=True)
    (config / "salt").write_text(damaged)
    with pytest.raises(FileError, match="remove it"):
        health.salt()
    assert (config / "salt").read_text() == damaged


def test_the_recordings_are_anonymised():
    """A recording equals its redacted form: nothing in it looks like a name."""
    for path in sorted(Path(__file__).parent.glob("recordings/*.jsonl.gz")):
        run = store.read_run(path)
        devices = [device.uuid for device in run.manifest.facts.devices if device.uuid]
        assert all(re.fullmatch(r"device-[0-9a-f]{12}|GPU-0{8}(-0{4}){3}-0{11}\d", uuid) for uuid in devices)
        assert dict(run.manifest.facts.host)["hostname"] in ("redacted", *re.findall(r"host-[0-9a-f]{12}", repr(run)))
        assert json.dumps(run.manifest.argv).count("/") == 0


RECORDINGS = sorted(path for path in (ROOT / "tests/recordings").rglob("*.jsonl.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_sentence_of_a_recorded_run_is_changed(path):
    """The recordings are already redacted; only the identities of devices may change, which some write differently."""

    def anonymous(run):
        facts = run.manifest.facts
        devices = tuple(dataclasses.replace(device, uuid="", pci="") for device in facts.devices)
        host = tuple((name, value) for name, value in facts.host if name != "hostname")
        facts = dataclasses.replace(facts, devices=devices, host=host)
        # the command that shows the energy of the host was damaged by an earlier redaction
        counters = tuple(dataclasses.replace(counter, source="") for counter in run.manifest.counters)
        return dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, facts=facts, counters=counters))

    run = store.read_run(path)
    assert anonymous(shared(run, SALT)) == anonymous(run)


def test_no_sentence_of_a_suite_or_a_collector_is_changed():
    suites = [plugins.load("suites", name) for name in plugins.names("suites")]
    counters = [
        counter for name in plugins.names("collectors") for counter in plugins.load("collectors", name).counters
    ]
    texts = [
        *(suite.summary for suite in suites),
        *(view.title for suite in suites for view in suite.views),
        *(figure.title for _, figure in (*OF_GPU, *OF_HOST)),
        *(counter.source for counter in counters),
        *(bit.name for counter in counters for bit in counter.bits),
    ]
    run = shared(make.run(*(make.result(of=make.case(n=n), reason=text) for n, text in enumerate(texts))), SALT)
    assert [result.reason for result in run.results] == texts


@pytest.mark.slow
def test_all_words_of_sentences_in_the_code_are_allowed():
    """Reasons, notes, remarks and docstrings; some have examples of paths and addresses."""
    paths = (path for room in (*ROOMS, "ci") for path in (ROOT / room).rglob("*.py"))
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts = sorted(text for text in constants if text.count(" ") > 1 and text.isascii() and len(text) < 300)
    run = shared(make.run(*(make.result(of=make.case(n=n), reason=text) for n, text in enumerate(texts))), SALT)
    changed = [text for text, result in zip(texts, run.results, strict=True) if result.reason != text]
    assert len(texts) > 4000
    assert len(changed) < len(texts) / 20, changed


ATOMS = (
    "a", "A", "0", "é", "/", ":", ".", "@", "-", "_", "~", '"', "'", " ", "\\", "=", "+", "\n", "(", "[", "`", ",",
    "%", "a@", "@a", "/a", "a/", "a.", "a:", "a-", "a_", "a=", "A=", "A1", "0.", "0:", "::", "~/", "../", "a b",
    "a /", "/a b", "/a b c d e ", "/x a.b ", "\\a ", "C:\\a a ", "a://", "https://.", "--a", "--token ", "token=",
    "TOKEN:", "'A':", 'TOKEN="', "{'TOKEN': '", "a.com", "a.com/", "serial ", "serial number ", "bearer ",
    "Authorization:", "-----", "-----BEGIN ", "ssh-rsa AAAA", "eyJaaaaaaaa.", "ghp_", "AKIA", "/home/a ", "'/a",
    '"~', "GPU-", "dead:beef:", "1.1.1.", "0000:00:00.", "a1B", "aB1-", "host-0123456789ab", "path-0123456789ab/",
    "/usr/lib/", "/site-packages/", "suites/a.py", "s/n/", "s/n ", "serial-", "1:", "--a-token ", "A_", "a'",
)  # fmt: skip


def seconds(atom, length):
    """Return the least of three processor times for redacting a note with this text, without a cache."""
    run = make.run(make.result(notes=(("note", (atom * (length // len(atom) + 1))[:length]),)))
    return min(timeit.repeat(lambda: shared(run, SALT), timer=time.process_time, number=1, repeat=3))


@pytest.mark.parametrize("atom", ["a", "/", "a@", ":", "/a b", "a="])
def test_redaction_takes_time_in_proportion_to_a_text(atom):
    """A quadratic pattern takes sixteen times as long for four times the text."""
    assert seconds(atom, 60_000) < 8 * seconds(atom, 15_000) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("atom", ATOMS)
def test_a_megabyte_of_anything_is_redacted_in_a_second(atom):
    assert seconds(atom, 10**6) < 1


def test_an_unchanged_value_is_the_same_object_and_equal_tuples_are_changed_by_their_types():
    equal_text = "".join(["cuda", ":0"])  # equal to the device's id, but another object
    run = make.run(make.result(devices=("cuda:0",)), make.result(devices=(equal_text,), replicate=1))
    assert with_texts(run, lambda text: text) is run
    pairs = (("owner", "ada"), ("size", 2.5))
    values = (Marked(pairs, pairs),) * 3
    for changed in with_texts(values, lambda text: text.replace("owner", "you"), lambda word: word):
        assert changed.words is pairs
        assert changed.texts == (("you", "ada"), ("size", 2.5))


@dataclasses.dataclass(frozen=True)
class Marked:
    """The same texts as words that code chose and as texts that may name somebody, and a number beside one."""

    words: "tuple[tuple[Annotated[str, WORD], str | float], ...]"
    texts: "tuple[tuple[str, str | float], ...]"
