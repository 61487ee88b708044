"""The same GPUs over days: those that are slow repeatedly, recovered, or became slower."""

import math
import re
from dataclasses import replace

import pytest
from _fleets import fleet

from gpubench.judging.fleet_rule import SecondMeasurement, judge_fleet
from gpubench.tools.fleet import judging
from gpubench.tools.fleet.judging import WatchedFleet, newest_event_text, watch
from gpubench.tools.sharing import shared

SLOW = ("gpu03", "cuda:0")
DAY_S = 86400.0


def day(number, slow=0.0, again=()):
    record, digests = fleet(8, 1, slow={SLOW: {"memory": slow}}, seed=number)
    return WatchedFleet(f"day-{number:02}", number * DAY_S, tuple(digests), judge_fleet(record, digests, again))


def test_a_gpu_that_is_slow_on_two_days_is_slow_again_and_one_that_is_fine_on_the_next_has_recovered():
    assert watch([day(number) for number in range(3)]) == [], "never slow"
    (component,) = watch([day(0), day(1, 0.05), day(2, 0.05)])
    assert (component.place.node, component.suspected, component.is_slow_again) == ("gpu03", 2, True)
    assert component.states == (None, "suspect", "suspect")
    _, second = fleet(8, 1, seed=9)
    slow = day(1, 0.05, [SecondMeasurement(second[3], False), SecondMeasurement(second[5], True)])
    (component,) = watch([day(0), slow])
    assert (component.suspected, component.transient, component.is_slow_again) == (0, 1, False)
    (component,) = watch([day(1), day(2, 0.05), day(3, 0.05), day(4)])
    assert (component.suspected, component.recovered, component.is_slow_again) == (2, 1, False)
    assert component.document["recovered"] == 1


def test_a_day_that_compared_a_gpu_with_too_few_others_is_no_recovery():
    record, digests = fleet(3, 1, seed=9)
    small = WatchedFleet("small", 4 * DAY_S, tuple(digests[2:]), judge_fleet(record, digests[2:]))
    moved = replace(small, digests=(replace(digests[2], components=day(4).digests[3].components),))
    (component,) = watch([day(1), day(2, 0.05), day(3, 0.05), moved])
    assert (component.suspected, component.recovered, len(component.states)) == (2, 0, 3)


def test_gpus_that_report_one_uuid_are_followed_by_their_places():
    days = []
    for fleet_of_day in (day(1), day(2, 0.05), day(3, 0.05)):
        digests = tuple(
            replace(
                digest,
                components=tuple(replace(part, uuids=("GPU-0",)) for part in digest.components if part.kind == "GPU"),
            )
            for digest in fleet_of_day.digests
        )
        judged = judge_fleet(fleet_of_day.judgement.fleet, digests)
        days.append(replace(fleet_of_day, digests=digests, judgement=judged))
    (component,) = watch(days)
    assert (component.place.node, component.states) == ("gpu03", (None, "suspect", "suspect"))


def test_a_gpu_that_became_slower_is_listed_with_the_day_of_the_change():
    days = [day(number, 0.06 if number >= 10 else 0.0) for number in range(20)]
    (component,) = watch(days)
    event = newest_event_text(component.trends[0])
    assert event.startswith("bandwidth/triad")
    assert event.endswith("(worse) since day-10")
    assert component.worst == pytest.approx(0.06, abs=0.01)


def test_a_gpu_that_moved_to_another_node_is_the_same_gpu():
    before, after = day(0, 0.05), day(1, 0.05)
    moved = [replace(digest, node="other") if digest.node == "gpu03" else digest for digest in after.digests]
    judged = judge_fleet(after.judgement.fleet, moved)
    (component,) = watch([before, replace(after, digests=tuple(moved), judgement=judged)])
    assert (component.place.node, component.suspected) == ("other", 2)


def test_shared_histories_name_no_node_and_no_uuid_and_keep_the_changes():
    days = [day(number, 0.06 if number >= 10 else 0.0) for number in range(20)]
    histories = tuple(watch(days))
    (component,) = shared(histories, b"salt")
    assert "gpu03" in repr(histories)
    assert not re.search("gpu0|GPU-", repr(component))
    assert component.document["node"].startswith("host-")
    (change,) = component.document["changes"]
    assert change["fraction"] == histories[0].document["changes"][0]["fraction"]
    assert re.search(r": 6\.0 % less \(worse\) since file-\w{12}$", change["words"])


def test_another_driver_is_no_change_of_the_gpu():
    days = [day(number) for number in range(12)]
    for number in range(6, 12):
        made = []
        for digest in days[number].digests:
            part = digest.components[0]
            rates = {
                key: rate._replace(value=rate.value * 0.9, log=rate.log + math.log(0.9))
                for key, rate in part.rates.items()
            }
            print_ = replace(part.fingerprint, pairs=(*part.fingerprint.pairs, ("driver", "nvidia 999")))
            made.append(replace(digest, components=(replace(part, rates=rates, fingerprint=print_),)))
        days[number] = replace(
            days[number], digests=tuple(made), judgement=judge_fleet(days[number].judgement.fleet, made)
        )
    assert watch(days) == []


def test_a_change_is_shown_as_the_history_shows_it(monkeypatch, call, tmp_path):
    days = [day(number, 0.06 if number >= 10 else 0.0) for number in range(20)]
    monkeypatch.setattr(judging, "read_all", lambda folders: days)
    done = call("fleet", "watch", tmp_path)
    assert done.returncode == 1
    assert "gpu03 cuda:0: slow in 10 of 20, recovered 0 times" in done.stdout
    assert "bandwidth/triad" in done.stdout
    assert "worse" in done.stdout
