"""The plan: the headline cases of each suite, and the names that stand for several suites."""

from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature

import _make as make
import pytest

from gpubench import plugins
from gpubench.authoring.axes import Target, points
from gpubench.authoring.suite import Suite
from gpubench.base.errors import UsageError
from gpubench.measuring import plan as planning
from gpubench.model import Facts, Settings

ONE = make.facts(make.device())
TWO = make.facts(make.device("cuda:0", peers=("cuda:1",)), make.device("cuda:1", peers=("cuda:0",)))


def suite_of(**cases):
    suite = Suite("a suite")
    for name, declared in cases.items():
        axes = [word for word in declared if word not in ("headline", "devices", "when", "where", "ranks")]
        build = partial(print, name)
        build.__name__, build.__qualname__, build.__module__ = name, name, "suites.made"
        build.__signature__ = Signature([Parameter(axis, Parameter.POSITIONAL_OR_KEYWORD) for axis in ["bench", *axes]])
        suite.case(**declared)(build)
    return suite


def headline_ids(suite, facts=ONE, tier="quick", device="cuda:0"):
    return [case.id for case in planning.headline(suite, Target(facts, facts.device(device), tier))]


FLAGGED = {"n": (1, 2), "headline": {}}
DTYPES = {"dtype": ("float64", "float32"), "n": (1, 2), "headline": {"dtype": "float64"}}


@pytest.mark.parametrize(
    ("cases", "ids"),
    [
        ({"first": {"n": (1,)}, "main": DTYPES}, ["made/main[dtype=float64,n=2]"]),
        ({"main": {"n": (1, 2, 3), "headline": {}}, "last": {"n": (9,)}}, ["made/main[n=3]"]),
        ({"first": {"n": (1, 2)}, "second": {"n": (9,)}}, ["made/first[n=1]"]),
        ({"one": FLAGGED, "other": {"n": (3,)}, "two": FLAGGED}, ["made/one[n=2]", "made/two[n=2]"]),
    ],
    ids=["the values of the flag", "an empty flag", "no flag", "two flags"],
)
def test_the_headline_is_the_last_point_of_each_flagged_case_and_without_a_flag_the_first(cases, ids):
    assert headline_ids(suite_of(**cases)) == ids


def test_if_a_flagged_value_is_unsupported_the_headline_has_as_many_others_as_possible():
    suite = suite_of(
        main={
            "dtype": ("float16", "float32"),
            "n": points((1, 4, 8), smoke=(1,)),
            "headline": {"dtype": "float16", "n": 4},
        }
    )
    assert headline_ids(suite) == ["made/main[dtype=float16,n=4]"]
    assert headline_ids(suite, tier="smoke") == ["made/main[dtype=float16,n=1]"]
    elsewhere = suite_of(main={"dtype": ("float32",), "n": (1, 8), "headline": {"dtype": "float16", "n": 4}})
    assert headline_ids(elsewhere) == ["made/main[dtype=float32,n=8]"]


def test_the_headline_is_a_point_that_has_enough_devices_if_there_is_one():
    pull = {"path": ("same", "peer"), "n": (1, 2), "devices": lambda at: 1 + (at["path"] == "peer"), "headline": {}}
    assert headline_ids(suite_of(pull=pull)) == ["made/pull[path=same,n=2]"]
    assert headline_ids(suite_of(pull=pull), TWO) == ["made/pull[path=peer,n=2]"]
    assert headline_ids(suite_of(pull={**pull, "path": ("peer",)})) == ["made/pull[path=peer,n=2]"]
    gpu_only, host = {"n": (1,), "when": lambda target: not target.is_host, "headline": {}}, make.device("host", "CPU")
    assert headline_ids(suite_of(first={"n": (5,)}, gpu=gpu_only), make.facts(host), device="host") == [
        "made/first[n=5]"
    ]
    assert headline_ids(suite_of(gpu=gpu_only), make.facts(host), device="host") == []


def test_single_points_can_be_left_out_and_ranks_may_follow_from_the_parameters():
    both = {
        "dtype": ("float16", "float32"),
        "n": (1, 8),
        "where": lambda _, at: at["dtype"] == "float16" or at["n"] < 8,
    }
    suite = suite_of(main=both)
    cases = suite.cases(Target(make.facts(), make.device()))
    assert [case.id.partition("[")[2] for case in cases] == [
        "dtype=float16,n=1]",
        "dtype=float16,n=8]",
        "dtype=float32,n=1]",
    ]
    suite = suite_of(ring={"gpus": (2, 4), "ranks": lambda params: params["gpus"]})
    assert [case.ranks for case in suite.cases(Target(ONE, ONE.devices[0]))] == [2, 4]


def headline_of(name, facts, device, tier):
    suite = planning.load_suite(name)
    return headline_ids(suite, facts, tier, device)


H200 = make.facts(
    make.device(
        dtypes=("float64", "float32", "tf32", "float16", "bfloat16"), cache_bytes=60 * 2**20, memory_bytes=2**37
    ),
    make.device("host", "CPU", dtypes=("float64", "float32"), cache_bytes=2**25, memory_bytes=2**35),
)


@pytest.mark.parametrize(
    ("suite", "gpu", "host"),
    [
        ("latency", ["chase[size=4GiB]"], ["chase[size=128MiB]"]),
        ("gemm", ["square[dtype=bfloat16,n=2048]"], ["square[dtype=float32,n=2048]"]),
        ("ipc", ["pull[path=same,size=1GiB]"], ["pull[path=same,size=256MiB]"]),
        (
            "bandwidth",
            [
                f"{name}[size={size},dtype=float32]"
                for name, size in (("read", "4GiB"), ("copy", "1GiB"), ("triad", "1GiB"))
            ],
            [f"{name}[size=128MiB,dtype=float32]" for name in ("read", "copy", "triad")],
        ),
        (
            "compression",
            ["roundtrip[corpus=ids,codec=lz4,size=256MiB,chunk=64KiB]"],
            ["roundtrip[corpus=ids,codec=lz4,size=4MiB,chunk=64KiB]"],
        ),
    ],
)
def test_the_built_in_suites_have_the_agreed_headline_cases(suite, gpu, host):
    assert headline_of(suite, H200, "cuda:0", "quick") == [f"{suite}/{case}" for case in gpu]
    assert headline_of(suite, H200, "host", "quick") == [f"{suite}/{case}" for case in host]


@pytest.mark.parametrize("tier", ["smoke", "quick", "full"])
def test_a_headline_run_has_cases_of_each_suite_on_each_device(tier):
    names = planning.suite_names(["headline"])
    plan = planning.make(H200, Settings(names, ("cuda:0", "host"), tier, headline=True))
    measured = [(job.case.suite, job.devices[0].id) for job in plan.jobs]
    assert list(dict.fromkeys(measured)) == [
        (name, device)
        for device in ("cuda:0", "host")
        for name in names
        if device != "host" or name not in ("inference", "p2p", "tensor")
    ]
    several = {pair for pair in measured if measured.count(pair) > 1}
    assert several == {("bandwidth", "cuda:0"), ("bandwidth", "host"), ("inference", "cuda:0")}


def test_a_filter_selects_among_the_headline_cases_and_replaces_none():
    plan = planning.make(H200, Settings(("bandwidth", "gemm"), ("host",), filters=("gemm",), headline=True))
    assert [job.case.id for job in plan.jobs] == ["gemm/square[dtype=float32,n=2048]"]
    with pytest.raises(UsageError, match="no case matches --filter float64"):
        planning.make(H200, Settings(("gemm",), ("host",), filters=("float64",), headline=True))


def test_a_filter_that_selects_nothing_here_says_why_and_suggests_only_what_is_similar():
    host = Facts(tuple(device for device in H200.devices if device.backend == "host"))

    def refusal(facts, suite, *filters, tier="quick", device="host"):
        with pytest.raises(UsageError) as refused:
            planning.make(facts, Settings((suite,), (device,), tier, filters))
        return str(refused.value)

    assert refusal(host, "bandwidth", "h2d") == "bandwidth/h2d needs a GPU; none here"
    assert refusal(H200, "bandwidth", "h2d") == "bandwidth/h2d: no case runs on host"
    assert refusal(host, "gemm", "sqare").endswith("did you mean gemm/square?")
    assert "did you mean" not in refusal(host, "gemm", "latency")


def test_the_word_headline_combines_with_names_and_all_and_is_no_suite():
    every = plugins.names("suites")
    assert planning.suite_names(["headline"]) == every
    assert planning.suite_names(["all", "headline"]) == every
    assert planning.suite_names(["headline", "gemm", "gemm"]) == ("gemm",)
    assert [planning.is_headline(names) for names in ([], ["all"], ["gemm", "headline"])] == [False, False, True]
    with pytest.raises(UsageError, match="did you mean headline"):
        planning.suite_names(["headlines"])


def test_an_axis_peer_selects_the_second_device_and_the_case_is_skipped_without_it():
    three = make.facts(*(make.device(f"cuda:{n}", peers=("cuda:0", "cuda:1", "cuda:2")) for n in range(3)))
    assert [device.id for device in planning._device_set(pair("cuda:2"), three.devices[0], three)] == [
        "cuda:0",
        "cuda:2",
    ]
    assert [device.id for device in planning._device_set(pair("none"), three.devices[0], three)] == ["cuda:0"]


def pair(peer):
    return replace(make.case("copy", peer=peer), devices=2)
