"""Nothing that leaves a machine identifies it: no kind of mark survives any exit, whichever text contains it."""

import base64
import gzip
import html
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
from gpubench.cli import _sharing as sharing
from gpubench.cli import doctor
from gpubench.model import DataFile, NamedLink, Remark, Settings, SuiteInfo, UnavailablePart, View, store
from gpubench.model.fleet import Fleet, FleetNode, Remeasured, encode_fleet
from gpubench.tools import health
from gpubench.tools.monitor import live
from gpubench.tools.sharing import shared, vocabulary

SALT = b"a salt"
EVERY_MARK = "\n".join((*(mark.text for mark in MARKS), f"{OTHER_HOST} is down"))
TEXTS = (*(mark.text for mark in MARKS), EVERY_MARK)  # each mark alone, and all in one text
KINDS = {secret: mark.kind for mark in MARKS for secret in mark.secrets} | {OTHER_HOST: "other host"}


def facts(host, texts=TEXTS):
    """Return the facts of a machine with each text in every place for a free text."""
    pairs = tuple((f"fact {number}", text) for number, text in enumerate(texts))
    device = make.device(uuid=UUID, pci=PCI, details=(("serial", SERIAL), *pairs), name=EVERY_MARK)
    return make.facts(
        device,
        *(make.device(f"cuda:{number}", text, uuid=text, pci=text) for number, text in enumerate(texts, 1)),
        host=(("hostname", host), ("motherboard", EVERY_MARK), ("system", EVERY_MARK), *pairs),
        versions=(("driver", "1"), *pairs),
        absent=tuple(UnavailablePart(text, text, text) for text in texts),
    )


def marked_run(host=HOST, texts=TEXTS):
    """Return a run with each of these texts in every field that its code does not choose."""
    numbered = tuple(enumerate(texts))
    results = [
        make.result(make.timing(1e-3 + 1e-5 * replicate, moved=1e6), of=make.case(), replicate=replicate)
        for replicate in range(8)
    ]
    results += [
        make.result(
            make.timing(1e-3, 2e-3, moved=1e6),
            of=make.case(data=text, number=number),
            status=status,
            cause="" if status == "ok" else "crash",
            reason="" if status == "ok" else text,
            labels=(text,),
            discarded=((text, 1),),
            notes=(("progress", text), ("name", text)),
        )
        for number, text in numbered
        for status in (("ok", "failed")[number % 2],)
    ]
    settings = Settings(
        ("bandwidth", *texts),
        ("cuda:0",),
        filters=texts,
        data=tuple(DataFile(text, text, 5, text) for text in texts),
        links=tuple(NamedLink(text, 1e9) for text in texts),
    )
    views = tuple(View("bars", text, ("triad",)) for text in texts)
    suites = (SuiteInfo("bandwidth", EVERY_MARK, views), *(SuiteInfo(f"s{number}", text) for number, text in numbered))
    # a history would take two runs with the same start for one
    started = f"2026-01-0{1 + len(host) % 9}T03:04:05+00:00"
    command = ("gpubench", "run", *texts)
    run = make.run(*results, settings=settings, suites=suites, argv=command, facts=facts(host, texts), started=started)
    states = ("absent", "lost", "event")
    remarks = tuple(Remark(0.0, state, "nvml", "cuda:0", text) for state in states for text in texts)
    return replace(run, remarks=remarks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write two run files of two machines and the record of a fleet of them, with every mark."""
    folder = tmp_path_factory.mktemp("marked")
    fleet = folder / f"{USER}@{HOST}"
    (fleet / "again").mkdir(parents=True)
    for name, host in (("a.jsonl", HOST), ("b.jsonl", OTHER_HOST)):
        content = store.encode_run(marked_run(host))
        (folder / name).write_bytes(content)
        (fleet / f"{host}.jsonl").write_bytes(content)
        (fleet / "again" / f"{host}.jsonl").write_bytes(content)
    nodes = (
        *(FleetNode(host, "answered", 1.0, f"{host}.jsonl", "", "rack of zebra") for host in (HOST, OTHER_HOST)),
        *(FleetNode(text, "died", 1.0, "", text, text) for text in TEXTS),
    )
    again = tuple(Remeasured(host, "suspect", "answered", 1.0, f"{host}.jsonl") for host in (HOST, OTHER_HOST))
    record = Fleet(nodes, "slurm", TEXTS, "2026-01-02T03:04:05+00:00", 1.0, 2, again)
    (fleet / "fleet.json").write_bytes(encode_fleet(record))
    return folder


@pytest.fixture
def call(call, runs, tmp_path, monkeypatch):
    """Return a function that runs the command beside the marked files, as the user of the marks."""
    monkeypatch.setattr(health, "names", lambda: (USER,))
    monkeypatch.setattr(doctor, "_measure_smoke", lambda _: marked_run())
    for path in ("a.jsonl", "b.jsonl"):
        (tmp_path / path).write_bytes((runs / path).read_bytes())
    fleet = next(path for path in runs.iterdir() if path.is_dir())
    (tmp_path / "fleet").symlink_to(fleet)
    (tmp_path / fleet.name).symlink_to(fleet)

    def run(*arguments):
        done = call(*arguments)
        assert done.returncode in (0, 1, 3, 4), done.stderr
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


def written(*paths):
    """Return the names and contents of these files, and of the files in these folders and below."""
    found = [file for path in map(Path, paths) for file in (path, *path.rglob("*")) if file.is_file()]
    return [*map(str, found), *map(files.content, found)]


def report(form):
    def write(call):
        call("report", "a.jsonl", "-o", f"r.{form}")
        if form != "parquet":
            return written(f"r.{form}")
        import pyarrow.parquet

        return [json.dumps(pyarrow.parquet.read_table("r.parquet").to_pylist(), default=str)]

    return write


def output(*arguments):
    """Return the exit of a command that prints a document."""
    return lambda call: [call(*arguments)]


def file(*arguments, form):
    def write(call):
        call(*arguments, "-o", f"out.{form}")
        return written(f"out.{form}")

    return write


def trends(call):
    call("history", "import", ".", "--store", "h.sqlite")
    call("history", "triad", "--store", "h.sqlite", "--html", "h.html")
    return written("h.html")


def bundle(call):
    call("doctor", "--bundle", "b.tar.gz")
    with tarfile.open("b.tar.gz") as packed:
        members = {member.name: packed.extractfile(member).read() for member in packed.getmembers()}
    members["run.jsonl.gz"] = gzip.decompress(members["run.jsonl.gz"])
    assert {"facts.json", "README"} <= set(members)
    return [content for name, content in members.items() if "sys/" not in name]


def gate(*arguments):
    def publish(call):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
            document = call(*arguments, "--json", "--junit", "j.xml", "--markdown", "m.md")
            patch.setenv("GITHUB_ACTIONS", "true")
            log = call(*arguments)
        assert " title=gpubench gate::" in log
        return [document, log, *written("j.xml", "m.md", "summary.md")]

    return publish


EXITS = {
    **{f"report.{form}": report(form) for form in plugins.names("reports")},
    "report of two": file("report", "a.jsonl", "b.jsonl", form="html"),
    **{f"compare.{form}": file("compare", "a.jsonl", "b.jsonl", form=form) for form in ("html", "md", "json")},
    "compare --json": output("compare", "a.jsonl", "b.jsonl", "--json"),
    "show --json": output("show", "a.jsonl", "--json"),
    "history --html": trends,
    "site": file("site", "fleet", form="site"),
    "gate": gate("gate", "b.jsonl", "--baseline", "a.jsonl"),
    "gate --floor": gate("gate", "a.jsonl", "--floor"),
    **{f"fleet judge.{form}": file("fleet", "judge", "fleet", form=form) for form in ("html", "md", "json", "xml")},
    "fleet judge --json": output("fleet", "judge", "fleet", "--json"),
    "fleet watch --json": output("fleet", "watch", "fleet", "fleet", "--json"),
    "redact": file("redact", "a.jsonl", form="jsonl.gz"),
    "redact a folder": file("redact", "fleet", form="folder"),
    "doctor --bundle": bundle,
}  # fmt: skip


def test_the_runs_contain_every_mark_before_sharing(runs):
    """Otherwise a missing mark in an output would prove nothing. Words of the source are allowed: no mark is one."""
    assert left((runs / "a.jsonl").read_text()) == KINDS
    assert vocabulary().isdisjoint({*(secret.lower() for secret in KINDS), "gpu17", "node-17", "zebra", "joe"})


@pytest.mark.parametrize("name", EXITS)
def test_no_kind_of_mark_survives_an_exit(call, name):
    assert left(*EXITS[name](call)) == {}


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.kind)
def test_no_text_field_passes_a_mark_even_one_for_words_that_code_chooses(mark):
    everywhere = with_texts(marked_run(HOST, (mark.text,)), lambda _: mark.text, lambda _: mark.text)
    named = replace(everywhere.manifest, facts=replace(everywhere.manifest.facts, host=(("hostname", HOST),)))
    run = shared(replace(everywhere, manifest=named), SALT, (USER,))
    assert set(left(repr(run))) & set(mark.secrets) == set()
    assert shared(run, b"another salt", (USER,)) == run


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.kind)
def test_a_mark_is_left_out_of_a_text_and_the_sentence_stays(mark):
    reason = f"{mark.text}; 3 of 4 samples"
    run = make.run(make.result(status="failed", reason=reason), facts=facts(HOST, ()))
    text = shared(run, SALT, (USER,)).results[0].reason
    assert [secret for secret in mark.secrets if secret.lower() in text.lower()] == []
    assert re.search(r"; 3 of 4 samples$|^(Authorization|Cookie): \(left out\)$", text), "of a header all goes"


def test_sharing_a_text_of_several_marks_twice_changes_nothing_more():
    rng = random.Random(7)
    signs = (" ", "; ", ". ", ": ", "\n", ", ", " (", ") ", "=", "'", '"', " is ")
    texts = ["".join(rng.choice(MARKS).text + rng.choice(signs) for _ in range(rng.randint(1, 6))) for _ in range(1000)]
    run = make.run(make.result(notes=tuple(("note", text) for text in texts)), facts=facts(HOST))
    once = shared(run, SALT)
    assert left(repr(once.results)) == {}
    assert shared(once, b"another salt") == once


def test_a_gate_shows_names_on_the_users_own_terminal_and_publishes_them_only_if_asked(call, monkeypatch):
    arguments = ("gate", "b.jsonl", "--baseline", "a.jsonl", "--markdown", "m.md")
    assert HOST in call(*arguments)
    assert HOST not in Path("m.md").read_text()
    call(*arguments, "--no-redact")
    assert HOST in Path("m.md").read_text()
    result = make.result(status="failed", reason=EVERY_MARK)
    assert sharing.for_terminal(result) is result
    monkeypatch.setenv("CI", "true")
    assert set(left(sharing.for_terminal(result).reason)) == set(), "progress and messages are anonymised in a CI"
    assert sharing.for_terminal("run files: /home/zoe/x") == "run files: (left out)"


def test_the_monitors_endpoint_serves_only_fixed_texts_and_the_model_of_the_device():
    device = replace(marked_run().manifest.facts.devices[0], name="NVIDIA H200")
    latest = live.Latest((make.POWER, make.ENERGY), [device])
    latest.add([make.samples((0.0, 1.0), power=(100.0, 100.0), energy=(1.0, 2.0))])
    page = live.prometheus(latest)
    assert 'model="NVIDIA H200"' in page
    assert left(page) == {}
