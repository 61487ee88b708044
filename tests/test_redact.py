"""Nothing that leaves a machine identifies it: host, user, paths, UUIDs, serials, addresses, in fields and texts."""

import ast
import dataclasses
import hashlib
import json
import re
import stat
import time
from pathlib import Path
from typing import Annotated

import _make as make
import pytest

from gpubench import plugins
from gpubench.base.errors import FileError
from gpubench.base.walk import WORD, with_texts
from gpubench.knowledge.key_figures import OF_GPU, OF_HOST
from gpubench.model import DataFile, Settings, SuiteInfo, UnavailablePart, store
from gpubench.tools import identity
from gpubench.tools.redact import redacted

SALT = b"salt of a test"
UUID = "GPU-3f1d2a4b-5c6d-7e8f-9a0b-1c2d3e4f5a6b"
SECRETS = {
    "host": "gpu17.acme.example",
    "host's first label": "gpu17",
    "user": "amelia",
    "uuid": UUID,
    "uuid without its prefix": UUID.removeprefix("GPU-"),
    "pci": "0000:9b:00.0",
    "short pci": "9b:00.0",
    "serial": "1652922013123",
    "ip": "10.17.3.250",
    "ip6": "fe80::1c2d:3eff:fe4f:5a6b",
    "mac": "0c:42:a1:5f:77:e0",
    "mail": "amelia@acme.example",
    "home": "/home/amelia/secret project/model.bin",
    "path": "/data/acme/weights.safetensors",
    "relative path": "acme/dumps/a.bin",
    "tilde": "~amelia/runs",
    "windows": r"C:\Users\amelia\runs\a.jsonl",
    "share": r"\\filer\acme\runs",
    "url": "https://pypi.acme.example/simple?token=hunter2",
    "env": "hunter2",
}
TEXTS = (
    "worker on gpu17.acme.example died; see /data/acme/weights.safetensors: line 3",
    "GPU17 is down, and AMELIA's is amelia_run",
    f"device {UUID} (0000:9b:00.0, 9b:00.0) serial number 1652922013123 fell off the bus",
    f"no device {UUID.removeprefix('GPU-')}",
    "connect to 10.17.3.250:4217 or [fe80::1c2d:3eff:fe4f:5a6b] via 0c:42:a1:5f:77:e0 failed",
    "mail amelia@acme.example",
    'FileNotFoundError: [Errno 2] No such file or directory: "/home/amelia/secret project/model.bin"',
    "read acme/dumps/a.bin and ~amelia/runs and C:\\Users\\amelia\\runs\\a.jsonl and \\\\filer\\acme\\runs",
    "pip install --index-url https://pypi.acme.example/simple?token=hunter2",
    "HF_TOKEN=hunter2 AWS_SECRET=hunter2 gpubench run",
    """Traceback (most recent call last):
  File "/home/amelia/.venv/lib/python3.12/site-packages/cupy/core.py", line 7, in f
  File "/home/amelia/src/acme/suites/gemm/_vendor.py", line 219, in g
  File "/home/amelia/gpubench/acme/secret.py", line 3, in h
RuntimeError: out of memory on gpu17""",
)
ROOT = Path(__file__).parents[1]
ROOMS = ("gpubench", "suites", "collectors", "reports")  # the packages that a traceback of a case may pass through
HARMLESS = (
    "bandwidth/triad[size=1GiB,dtype=float32]",
    "53.4 GB/s of 63.0 GB/s, FLOP/s, J/GB, B/s",
    "cat /proc/stat and ls /sys/class/drm, /opt/rocm-7.0.2/lib/libamdhip64.so, /dev/nvidia0",
    "std::vector<float> cannot be cuda::std::array; a::b",
    "the host processor's user time, as root",
    "nvidia-smi --query-gpu=power.draw --format=csv",
    "needs 2 devices, here is 1: cuda:0",
    "driver 580.65.06, nvCOMP 6.0.0.12, cuBLAS 13.1.0.3",
    "1.5e-3 s at 12:34:56",
    "/dev/shm is full, of 64 MiB; see df /dev/shm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNN, _ZN7cutlass6KernelINS_4gemm6kernel13GemmUniversalEEEvNT_6ParamsE",
    "torch.cuda.OutOfMemoryError; numpy.linalg.LinAlgError: Singular matrix; cuda.api.runtime.CUDARuntimeError",
    "driver 580.65.06, CUDA 13.0, nccl 2.27.7+cuda13.0, 1.2.3.post4, 6.8.0-45-generic, gcc 13.3.0-6ubuntu2~24.04",
    "Apache-2.0 WITH LLVM-exception, BSD-3-Clause AND (MIT OR Apache-2.0), LicenseRef-NVIDIA-Proprietary",
    "nvml.clock.sm on cuda:0 and cuda:12: 1980 MHz; gpm.dram, host.cpu; 1/3, 3/4, and/or, n/a, TX/RX",
    "CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered",
    "gemm/skinny[m=8,n=8192,k=8192,dtype=float8_e4m3,weights=int4]: killed by SIGSEGV; last line: Fatal Python error",
    "the user's password is not asked for; set a token, a key and a secret; the host: it is slow",
    "--filter 'dtype=bf*' --replicates 10, threshold=2 %, q=0.05, RTX_3050=1, LD_LIBRARY_PATH, CUDA_VISIBLE_DEVICES=0",
    "2026-01-02T03:04:05+00:00, 20260102T030405Z-gate.jsonl, 2026-01-02",
    "ratio 1:2, 16:9, 3:1; a:b; x86-64, sm_90a, gfx942, sha256, utf-8, float8_e4m3fn, s8s8s32, 0xdeadbeef, A100-SXM4",
    "measured with cuda_fp8.h, gemm.cu, bench.sh and docs/method.md; tests/recordings/whole/h200.jsonl.gz",
    "core clock (cupti): 1980 MHz; tokens=4096, 4096 tokens: 128, batch:64",
)


def text_run(*texts):
    """Return a run that holds these texts wherever a run can hold a text."""
    joined = " / ".join(texts)
    device = make.device(
        uuid=UUID,
        pci="0000:9b:00.0",
        details=(("serial", "1652922013123"), ("power.limit_w", "700.0"), ("pcie.width", "16"), ("x", joined)),
    )
    facts = make.facts(
        device,
        make.device("host", "Example CPU"),
        host=(("hostname", "gpu17.acme.example"), ("system", "Linux 6.8"), ("motherboard", "acme-1")),
        versions=(("driver", "580.65.06"), ("nvcomp", "6.0.0.12"), ("cublas", "13.1.0.3"), ("odd", joined)),
        absent=(UnavailablePart("rocm", joined, joined),),
    )
    results = [
        make.result(
            make.timing(1e-3, 2e-3, moved=1e6),
            of=make.case(name=f"case{number}", text=text),
            status="failed",
            cause="crash",
            reason=text,
            labels=(text,),
            discarded=((text, 1),),
            notes=(("traceback", text), ("progress", text)),
        )
        for number, text in enumerate(texts)
    ]
    run = make.run(
        *results,
        facts=facts,
        settings=Settings(
            ("bandwidth",), ("cuda:0",), filters=texts, data=(DataFile("a.bin", "acme/dumps/a.bin", 5, "ab" * 32),)
        ),
        suites=(SuiteInfo("bandwidth", joined),),
        argv=("/home/amelia/bin/gpubench", "run", "--out", "/data/acme/weights.safetensors", "--data=acme/dumps/a.bin"),
    )
    return dataclasses.replace(run, warnings=("/data/acme/r.jsonl: line 4: the last line is incomplete", *texts))


def test_no_name_of_host_user_device_or_place_is_left_in_any_field_or_text():
    left = repr(redacted(text_run(*TEXTS), SALT, ("amelia", "gpu17.acme.example"))).lower()
    assert [name for name, secret in SECRETS.items() if repr(secret)[1:-1].lower() in left] == []
    assert "acme" not in re.sub(r"motherboard", "", left)
    assert "amelia" not in left


@pytest.mark.parametrize("text", ["zebras", "ZEBRAS", "zebra\u017f", "Zebra\u017f.local"])
def test_a_name_spelt_with_similar_letters_is_hidden_too(text):
    run = make.run(make.result(reason=f"on {text}"), facts=make.facts(make.device(), host=(("hostname", "zebras"),)))
    assert "ebra" not in redacted(run, SALT).results[0].reason


def test_a_user_is_found_by_a_home_folder_in_the_run():
    assert "amelia" not in repr(redacted(text_run(*TEXTS), SALT)).lower()


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_names_is_unchanged(text):
    run = redacted(text_run(text), SALT, ("amelia", "gpu17.acme.example"))
    assert {run.results[0].reason, run.results[0].case.param("text"), run.warnings[1]} == {text}


def test_a_warning_loses_the_path_it_begins_with():
    assert redacted(text_run("x y"), SALT).warnings[0] == "line 4: the last line is incomplete"


def test_a_suite_in_a_file_is_reduced_to_its_name():
    settings = Settings(("gemm", "/data/acme/secret/my_suite.py"), ("cuda:0",))
    run = redacted(make.run(settings=settings, argv=("gpubench", "run", "/data/acme/secret/my_suite.py")), SALT)
    assert run.manifest.settings.suites == ("gemm", "my_suite.py")
    assert "acme" not in repr(run)


def test_a_traceback_keeps_the_paths_inside_packages_and_gpubench():
    text = redacted(text_run(TEXTS[-1]), SALT).results[0].reason
    assert re.search(r'File "path-\w{12}/cupy/core.py", line 7', text)
    assert re.search(r'File "path-\w{12}/suites/gemm/_vendor.py", line 219', text)
    assert re.search(r'File "path-\w{12}", line 3', text)
    assert "RuntimeError: out of memory on host-" in text


@pytest.mark.parametrize("folder", sorted({path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}))
def test_every_folder_of_gpubench_is_kept_in_a_traceback(folder):
    place = f"{folder.relative_to(ROOT)}/some_file.py"
    text = redacted(text_run(f'  File "/home/amelia/src/{place}", line 7, in f'), SALT).results[0].reason
    assert f'/{place}", line 7' in text


def test_redaction_changes_no_number():
    before, after = text_run(*TEXTS), redacted(text_run(*TEXTS), SALT)
    assert [result.series for result in after.results] == [result.series for result in before.results]
    assert after.samples == before.samples
    assert (after.manifest.started, after.manifest.started_at) == (before.manifest.started, before.manifest.started_at)
    details = dict(after.manifest.facts.devices[0].details)
    assert (details["power.limit_w"], details["pcie.width"]) == ("700.0", "16")
    assert dict(after.manifest.facts.versions)["cublas"] == "13.1.0.3"
    assert after.manifest.argv == ("gpubench", "run")


def test_one_device_has_one_pseudonym_in_every_run_of_one_salt_and_another_in_another():
    first, again = (redacted(text_run(text), SALT) for text in ("a", "b"))
    with_another_salt = redacted(text_run("a"), b"another salt")
    assert first.manifest.facts.devices[0].uuid == again.manifest.facts.devices[0].uuid
    assert re.fullmatch(r"device-[0-9a-f]{12}", first.manifest.facts.devices[0].uuid)
    assert first.manifest.facts.devices[0].uuid != with_another_salt.manifest.facts.devices[0].uuid
    assert first.manifest.facts.devices[1].uuid.startswith("device-"), "a host joins by its name"
    assert first.manifest.facts.devices[0].uuid != first.manifest.facts.devices[1].uuid


def test_a_pseudonym_is_no_plain_hash_of_what_it_stands_for():
    uuid = redacted(text_run("a"), SALT).manifest.facts.devices[0].uuid
    assert hashlib.sha256(UUID.encode()).hexdigest()[:12] not in uuid


def test_a_device_in_a_text_has_the_pseudonym_of_its_field():
    run = redacted(text_run(f"lost {UUID}"), SALT)
    assert run.results[0].reason == f"lost {run.manifest.facts.devices[0].uuid}"


def test_a_device_without_an_identity_gets_no_pseudonym():
    run = redacted(make.run(make.result()), SALT)
    assert run.manifest.facts.devices[0].uuid == ""


def test_cases_that_differ_in_a_path_stay_different_when_redacted():
    cases = [make.case(data=f"/data/acme/{name}") for name in ("a", "b")]
    run = redacted(make.run(*(make.result(of=case) for case in cases)), SALT)
    assert len({result.key for result in run.results}) == 2
    assert "acme" not in repr(run)


def test_redacting_again_changes_nothing():
    once = redacted(text_run(*TEXTS), SALT, ("amelia",))
    assert redacted(once, b"another salt", ("amelia",)) == once


def test_a_redacted_run_can_be_written_and_read(tmp_path):
    run = redacted(dataclasses.replace(text_run(*TEXTS), warnings=()), SALT)
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(store.encode_run(run, packed=True))
    assert store.read_run(path) == run


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "gpubench"


def test_the_salt_is_made_once_and_readable_by_the_user_alone(config):
    salt = identity.salt()
    assert identity.salt() == salt
    assert len(salt) == 32
    assert stat.S_IMODE((config / "salt").stat().st_mode) == 0o600
    assert [path.name for path in config.iterdir()] == ["salt"]


def test_every_new_salt_is_different(config):
    first = identity.salt()
    (config / "salt").unlink()
    assert identity.salt() != first


@pytest.mark.parametrize("damaged", ["", "not hexadecimal", "abcd", "é" * 64])
def test_a_damaged_salt_is_refused_and_never_replaced(config, damaged):
    config.mkdir(parents=True)
    (config / "salt").write_text(damaged)
    with pytest.raises(FileError, match="remove it"):
        identity.salt()
    assert (config / "salt").read_text() == damaged


def test_a_salt_that_cannot_be_made_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match="set XDG_CONFIG_HOME"):
        identity.salt()


def test_the_recordings_are_anonymised():
    """A recording equals its redacted form: nothing in it looks like a name."""
    for path in sorted(Path(__file__).parent.glob("recordings/*.jsonl.gz")):
        run = store.read_run(path)
        devices = [device.uuid for device in run.manifest.facts.devices if device.uuid]
        assert all(re.fullmatch(r"device-[0-9a-f]{12}|GPU-0{8}(-0{4}){3}-0{11}\d", uuid) for uuid in devices)
        assert dict(run.manifest.facts.host)["hostname"] in ("redacted", *re.findall(r"host-[0-9a-f]{12}", repr(run)))
        assert json.dumps(run.manifest.argv).count("/") == 0


RECORDINGS = sorted(Path(__file__).parent.glob("recordings/*.jsonl.gz"))
PLAIN = ("whole/h200", "whole/h200x2-compression", "longer/base", "headline/2", "counters/h200-cases")


@pytest.mark.parametrize("path", [*RECORDINGS, *(ROOT / "tests/recordings" / f"{name}.jsonl.gz" for name in PLAIN)])
def test_no_sentence_of_a_recorded_run_is_changed(path):
    """The recordings are already redacted; only the identities of devices may change, which some write differently."""

    def anonymous(run):
        facts = run.manifest.facts
        devices = tuple(dataclasses.replace(device, uuid="", pci="") for device in facts.devices)
        host = tuple((name, value) for name, value in facts.host if name != "hostname")
        facts = dataclasses.replace(facts, devices=devices, host=host)
        return dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, facts=facts))

    run = store.read_run(path)
    assert anonymous(redacted(run, SALT)) == anonymous(run)


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
    run = redacted(make.run(*(make.result(of=make.case(n=n), reason=text) for n, text in enumerate(texts))), SALT)
    assert [result.reason for result in run.results] == texts


@pytest.mark.slow
def test_of_the_sentences_in_the_code_only_those_with_paths_and_addresses_are_changed():
    """All texts of reasons, notes and remarks, and docstrings as further sentences."""
    paths = (path for room in (*ROOMS, "ci") for path in (ROOT / room).rglob("*.py") if "redact" not in path.name)
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts = sorted(text for text in constants if text.count(" ") > 1)
    run = redacted(make.run(*(make.result(of=make.case(n=n), reason=text) for n, text in enumerate(texts))), SALT)
    changed = [text for text, result in zip(texts, run.results, strict=True) if result.reason != text]
    assert len(texts) > 5000
    examples = re.compile(r"://|\w/[\w.*/-]+\.\w|/\w+/\w|[~.]/\w|/\w+\.\w|\bgithub\.com|_PATH=|_MODE=|--token=|TOKEN=")
    assert [text for text in changed if not examples.search(text)] == []


ATOMS = (
    *(
        "a",
        "A",
        "0",
        "é",
        "/",
        ":",
        ".",
        "@",
        "-",
        "_",
        "~",
        '"',
        "'",
        " ",
        "\\",
        "=",
        "+",
        "\n",
        "(",
        "[",
        "`",
        ",",
        "%",
    ),
    *(
        "a@",
        "@a",
        "/a",
        "a/",
        "a.",
        "a:",
        "a-",
        "a_",
        "a=",
        "A=",
        "A1",
        "0.",
        "0:",
        "::",
        "~/",
        "../",
        "a b",
        "a /",
        "/a b",
    ),
    *("/a b c d e ", "/x a.b ", "\\a ", "C:\\a a ", "a://", "https://.", "--a", "--token ", "token=", "TOKEN:", "'A':"),
    *('TOKEN="', "{'TOKEN': '", "a.com", "a.com/", "serial ", "serial number ", "bearer ", "Authorization:", "-----"),
    *(
        "-----BEGIN ",
        "ssh-rsa AAAA",
        "eyJaaaaaaaa.",
        "ghp_",
        "AKIA",
        "/home/a ",
        "'/a",
        '"~',
        "GPU-",
        "dead:beef:",
        "1.1.1.",
    ),
    *(
        "0000:00:00.",
        "a1B",
        "aB1-",
        "host-0123456789ab",
        "path-0123456789ab/",
        "/usr/lib/",
        "/site-packages/",
        "suites/a.py",
    ),
)


def seconds(atom, length):
    """Return the least of three processor times for redacting a note with this text, without a cache."""
    run = make.run(make.result(notes=(("note", (atom * (length // len(atom) + 1))[:length]),)))
    outputs = []
    for _ in range(3):
        began = time.process_time()
        redacted(run, SALT)
        outputs.append(time.process_time() - began)
    return min(outputs)


@pytest.mark.parametrize("atom", ["a", "/", "a@", ":", "/a b", "a="])
def test_redaction_takes_time_in_proportion_to_a_text(atom):
    """A quadratic pattern takes sixteen times as long for four times the text."""
    assert seconds(atom, 60_000) < 8 * seconds(atom, 15_000) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("atom", ATOMS)
def test_a_megabyte_of_anything_is_redacted_in_a_second(atom):
    run = make.run(make.result(notes=(("note", atom * (10**6 // len(atom))),)))
    began = time.process_time()
    redacted(run, SALT)
    assert time.process_time() - began < 1


def test_an_unchanged_value_is_returned_as_the_same_object():
    equal_text = "".join(["cuda", ":0"])  # equal to the device's id, but another object
    run = make.run(make.result(devices=("cuda:0",)), make.result(devices=(equal_text,), replicate=1))
    assert with_texts(run, lambda text: text) is run


@dataclasses.dataclass(frozen=True)
class Marked:
    """The same texts as words that code chose and as texts that may name somebody, and a number beside one."""

    words: "tuple[tuple[Annotated[str, WORD], str | float], ...]"
    texts: "tuple[tuple[str, str | float], ...]"


def test_equal_tuples_of_texts_are_changed_by_their_types_however_often_they_occur():
    pairs = (("owner", "ada"), ("size", 2.5))
    values = (Marked(pairs, pairs),) * 3
    for changed in with_texts(values, lambda text: text.replace("owner", "you"), lambda word: word):
        assert changed.words is pairs
        assert changed.texts == (("you", "ada"), ("size", 2.5))
