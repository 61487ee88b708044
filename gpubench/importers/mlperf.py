"""Import MLPerf Inference's `mlperf_log_summary.txt`, as LoadGen writes it.

The lines come from `loadgen/results.cc`. The headline is the scenario's own figure: samples per second (Offline,
Server) or a percentile of the latency (SingleStream, MultiStream). A result that LoadGen calls INVALID is a failed
case. Only MLCommons publishes MLPerf results; an imported summary is none."""

import re

from gpubench.api import importer as gb

_FACT = re.compile(r"([\w.%/() -]+?)\s*:+\s*(\S.*)")
_QUANTITIES = (  # line, series, unit; the first that exists is the headline
    ("Samples per second", "samples", "sample/s"),
    ("Completed samples per second", "samples", "sample/s"),
    ("Scheduled samples per second", "scheduled", "sample/s"),
    ("90.0th percentile latency (ns)", "p90", "ns"),
    ("99.0th percentile latency (ns)", "p99", "ns"),
    ("Tokens per second", "tokens", "token/s"),
    ("Completed tokens per second", "tokens", "token/s"),
    ("Mean latency (ns)", "mean_latency", "ns"),
    ("Mean First Token latency (ns)", "mean_first_token", "ns"),
    ("Mean Time to Output Token (ns)", "mean_output_token", "ns"),
    *((f"{percent} percentile latency (ns)", f"p{percent}", "ns") for percent in ("50.00", "90.00", "99.00", "99.90")),
)


def _read(text: str) -> gb.Imported:
    facts: dict[str, str] = {}
    for line in gb.clean(text).splitlines():
        if fact := _FACT.match(line):
            facts.setdefault(fact[1], fact[2])
    if not {"Scenario", "Result is"} <= facts.keys():
        raise gb.BadOutput("there is no scenario, or no line `Result is`")
    if "\nTest Parameters Used" not in text:
        raise gb.BadOutput("it ends before the parameters of the test")
    output = gb.Output("mlperf", "imported: queries as MLPerf's LoadGen measured them")
    params = tuple((name, facts[key]) for name, key in (("sut", "SUT name"), ("mode", "Mode")) if key in facts)
    unmet = [name for name, value in facts.items() if name.endswith("satisfied") and value.upper() == "NO"]
    invalid = facts["Result is"] != "VALID"
    reason = f"LoadGen calls it {facts['Result is']}: not {', '.join(unmet)}" if unmet else "LoadGen calls it INVALID"
    failure = {"status": "failed", "cause": "invalid-result", "reason": reason} if invalid else {}
    output.add(facts["Scenario"].replace(" ", ""), params, gb.quantities(facts, _QUANTITIES), **failure)
    return output.imported()


_ACCEPTS = gb.has(r"^MLPerf Results Summary$", r"^Scenario\s*:")
importer: gb.Importer = gb.Reader("MLPerf Inference: mlperf_log_summary.txt of LoadGen; text", _ACCEPTS, _read)
