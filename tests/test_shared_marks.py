"""Nothing that leaves a machine identifies it: each kind of name in every free text, in all outputs of the commands."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import random
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import _files as files
import _make as make
import pytest
from _marks import HOST, MARKS, OTHER_HOST, PCI, SERIAL, USER, UUID

from gpubench import plugins
from gpubench.base.walk import with_texts
from gpubench.cli import _bundle
from gpubench.cli import _sharing as sharing
from gpubench.model import DataFile, NamedLink, Remark, Settings, SuiteInfo, View, store
from gpubench.tools import identity
from gpubench.tools.monitor import live
from gpubench.tools.redact import redacted, without_names

EVERY_MARK = "\n".join((*(mark.text for mark in MARKS), f"{OTHER_HOST} is down"))
KINDS = {secret: mark.kind for mark in MARKS for secret in mark.secrets} | {OTHER_HOST: "other host"}


def facts(host):
    device = make.device(uuid=UUID, pci=PCI, details=(("serial", SERIAL), ("x", "y")))
    return make.facts(device, host=(("hostname", host), ("system", "Linux")), versions=(("driver", "1"), ("odd", "2")))


def marked_run(host=HOST):
    """Return a run with every mark in each text that its code does not choose: what the model declares no word.

    The fields that are for names have those of the marks.
    """
    results = [
        make.result(of=make.case(data="x"), labels=("x",), discarded=(("x", 1),), notes=(("progress", "x"),)),
        make.result(of=make.case("copy"), status="failed", cause="crash", reason="x"),
    ]
    settings = Settings(
        ("bandwidth",),
        ("cuda:0",),
        filters=("x",),
        data=(DataFile("x", "x", 5, "x"),),
        links=(NamedLink("x", 1e9),),
    )
    suite = SuiteInfo("bandwidth", "x", (View("bars", "x", ("triad",)),))
    run = make.run(*results, settings=settings, suites=(suite,), argv=("gpubench", "run", "x"), facts=facts(host))
    remarks = tuple(Remark(0.0, state, "nvml", "cuda:0", "x") for state in ("absent", "lost", "event"))
    full = with_texts(replace(run, remarks=remarks), lambda _: EVERY_MARK, lambda word: word)
    device = replace(
        full.manifest.facts.devices[0], uuid=UUID, pci=PCI, details=(("serial", SERIAL), ("x", EVERY_MARK))
    )
    inventory = replace(full.manifest.facts, devices=(device,), host=(("hostname", host), ("motherboard", EVERY_MARK)))
    # a history would take two runs with the same start for one
    started = f"2026-01-0{1 + len(host) % 9}T03:04:05+00:00"
    manifest = replace(full.manifest, started=started, facts=inventory)
    return replace(full, manifest=manifest)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write two run files of two machines, with every mark."""
    folder = tmp_path_factory.mktemp("marked")
    for name, host in (("a.jsonl", HOST), ("b.jsonl", OTHER_HOST)):
        (folder / name).write_bytes(store.encode_run(marked_run(host)))
    return folder / "a.jsonl", folder / "b.jsonl"


@pytest.fixture
def call(call, monkeypatch):
    """Return a function that runs the command as the user of the marks and returns its standard output."""
    monkeypatch.setattr(identity, "names", lambda: (USER,))

    def run(*arguments):
        done = call(*arguments)
        assert done.returncode in (0, 3, 4), done.stderr
        return done.stdout

    return run


def opened(content):
    """Return the run file that a page contains in base64, in which marks could occur by chance."""
    packed = base64.b64decode(content[0] + "=" * (-len(content[0]) % 4))
    return gzip.decompress(packed).decode() if packed[:2] == b"\x1f\x8b" else content[0]


def left(*written):
    """Return the secrets that occur in the outputs, each with the kind of its mark."""
    assert written
    assert all(written)
    texts = [content if isinstance(content, str) else content.decode("utf-8", "replace") for content in written]
    texts = [re.sub(r"[A-Za-z0-9+/]{200,}=*", opened, text) for text in texts]
    joined = "\n".join((*texts, *map(html.unescape, texts))).lower()
    return {secret: kind for secret, kind in KINDS.items() if secret.lower() in joined}


def test_the_runs_contain_every_mark_before_redaction(runs):
    """Otherwise a missing mark in an output would prove nothing."""
    assert left(runs[0].read_text()) == KINDS


@pytest.mark.parametrize("kind", plugins.names("reports"))
def test_a_report_is_anonymised(call, runs, kind):
    call("report", runs[0], "-o", f"r.{kind}")
    content = Path(f"r.{kind}").read_bytes()
    if kind == "parquet":
        import pyarrow.parquet

        content = json.dumps(pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist(), default=str)
    # This run knows nothing of the other machine, whose name does not look like a host name.
    assert set(left(content)) <= {OTHER_HOST}


@pytest.mark.parametrize("kind", ["html", "md", "json"])
def test_a_comparison_is_anonymised(call, runs, kind):
    call("compare", *runs, "-o", f"c.{kind}")
    assert left(Path(f"c.{kind}").read_bytes()) == {}


def test_json_on_standard_output_is_anonymised(call, runs):
    assert left(call("compare", *runs, "--json")) == {}
    assert set(left(call("show", runs[0], "--json"))) <= {OTHER_HOST}


def test_a_page_of_trends_is_anonymised(call, runs):
    call("history", "import", runs[0].parent, "--store", "h.sqlite")
    call("history", "triad", "--store", "h.sqlite", "--html", "h.html")
    assert left(Path("h.html").read_bytes()) == {}


def test_every_page_of_a_site_is_anonymised(call, runs):
    call("site", runs[0].parent, "-o", "site")
    written = [path for path in Path("site").rglob("*") if path.is_file()]
    assert len(written) > 4
    # each run is anonymised by itself, and the other's short host name does not look like one
    others = {OTHER_HOST, "gpu17"}
    assert set(left(*(path.read_bytes() for path in written), *map(str, written))) <= others


@pytest.mark.parametrize("arguments", [("gate", "b.jsonl", "--baseline", "a.jsonl"), ("gate", "a.jsonl", "--floor")])
def test_the_publications_of_a_gate_are_anonymised(call, runs, tmp_path, monkeypatch, arguments):
    """These are its files, JSON, annotations, summary, and its output where a CI stores it."""
    for path in runs:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    document = call(*arguments, "--json", "--junit", "j.xml", "--markdown", "m.md")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    log = call(*arguments)
    assert " title=gpubench gate::" in log
    expected = {OTHER_HOST} if "--floor" in arguments else set()
    assert set(left(document, log, *(Path(name).read_text() for name in ("j.xml", "m.md", "summary.md")))) <= expected


def test_a_gate_shows_names_on_the_users_own_terminal_and_publishes_them_only_if_asked(call, runs):
    arguments = ("gate", runs[1], "--baseline", runs[0], "--markdown", "m.md")
    assert HOST in call(*arguments)
    assert HOST not in Path("m.md").read_text()
    call(*arguments, "--no-redact")
    assert HOST in Path("m.md").read_text()


@pytest.mark.parametrize(
    "salt",
    [
        "ab4ced7360ed7872ce861a37bd765970e2c4245b7476f175d93a84148e37a516",
        "ae5f8def7cd5021e05c9ab605fb581e20e9487249c50ba86fa09153df4ac4954",
    ],
)
def test_the_digits_of_a_pseudonym_are_not_taken_for_a_secret(salt):
    """These salts give pseudonyms with the digits aaaac3, with which every key of SSH begins."""
    text = without_names(EVERY_MARK, (), bytes.fromhex(salt), (USER,))
    assert "-aaaac3" in text
    assert set(left(text)) == {"gpu17", OTHER_HOST}
    assert [secret for secret in KINDS if re.fullmatch(r"[0-9a-f]{1,7}", secret.lower())] == []


def test_progress_and_messages_are_anonymised_in_a_ci(call, monkeypatch):
    result = make.result(status="failed", reason=EVERY_MARK)
    assert sharing.for_terminal(result) is result
    monkeypatch.setenv("CI", "true")
    assert set(left(sharing.for_terminal(result).reason)) == {"gpu17", OTHER_HOST}, (
        "hosts that nothing else is known of"
    )
    assert sharing.for_terminal("run files: /home/zoe/x").startswith("run files: path-")


def test_a_redacted_run_or_folder_contains_no_names(call, runs, tmp_path):
    call("redact", runs[0], "-o", "one.jsonl.gz")
    assert set(left(files.content(tmp_path / "one.jsonl.gz"))) <= {OTHER_HOST}
    call("redact", runs[0].parent, "-o", "all")
    assert left(*(path.read_bytes() for path in Path("all").iterdir())) == {}


def test_a_bundle_contains_no_names(call, monkeypatch):
    monkeypatch.setattr(_bundle, "_measure_smoke", lambda _: marked_run())
    call("doctor", "--bundle", "b.tar.gz")
    with tarfile.open("b.tar.gz") as bundle:
        members = {member.name: bundle.extractfile(member).read() for member in bundle.getmembers()}
    members["run.jsonl.gz"] = gzip.decompress(members["run.jsonl.gz"])
    assert {"facts.json", "README"} <= set(members)
    assert set(left(*(content for name, content in members.items() if "sys/" not in name))) <= {OTHER_HOST}


def test_the_monitors_endpoint_serves_only_fixed_texts_and_the_model_of_the_device():
    device = replace(marked_run().manifest.facts.devices[0], name="NVIDIA H200")
    latest = live.Latest((make.POWER, make.ENERGY))
    latest.add([make.samples((0.0, 1.0), power=(100.0, 100.0), energy=(1.0, 2.0))])
    page = live.prometheus(latest, {"cuda:0": device})
    assert 'model="NVIDIA H200"' in page
    assert left(page) == {}


def test_redacting_a_redacted_text_changes_nothing():
    once = redacted(marked_run(), b"a salt", (USER,))
    assert redacted(once, b"another salt", (USER,)) == once


def test_redacting_a_text_of_several_marks_twice_changes_nothing_more():
    """A pseudonym does not look like a mark in any context."""
    rng = random.Random(7)
    signs = (" ", "; ", ". ", ": ", "\n", ", ", " (", ") ", "=", "'", '"', " is ")
    texts = ["".join(rng.choice(MARKS).text + rng.choice(signs) for _ in range(rng.randint(1, 6))) for _ in range(1000)]
    once = redacted(make.run(make.result(notes=tuple(("note", text) for text in texts)), facts=facts(HOST)), b"a salt")
    assert redacted(once, b"another salt") == once


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.kind)
def test_a_name_is_removed_from_a_text_and_the_sentence_stays(mark):
    run = make.run(make.result(status="failed", reason=f"{mark.text}; 3 of 4 samples"), facts=facts(HOST))
    text = redacted(run, b"a salt", (USER,)).results[0].reason
    assert [secret for secret in mark.secrets if secret.lower() in text.lower()] == []
    assert re.search(r"; 3 of 4 samples$|^(Authorization|Cookie): value-\w{12}$", text), (
        "of a header the whole line goes"
    )
