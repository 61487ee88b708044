"""Plan a soak: the suite `soak` in passes for as long as the user wants, as one ordinary run."""

import math
import re
import time
from dataclasses import replace

from gpubench.base.errors import UsageError
from gpubench.measuring import plan as planning
from gpubench.measuring.plan import Plan
from gpubench.measuring.progress import Observer, ProgressEvent
from gpubench.model import Facts, Settings, Tier

SUITE = "soak"
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)")
_LONG_S = 120.0  # in a soak of this length or more, each case of a pass runs for seconds
_CASE_S: dict[Tier, float] = {"smoke": 0.05, "quick": 0.1, "full": 10.0}  # least duration of a case in a pass
_MOST_PASSES = 20_000
_MOST_S = 30 * 86400.0


def seconds_of(text: str, option: str = "--for") -> float:
    """Return the seconds of a time such as 90s, 10min, 1h or 2d; raises UsageError, with `option`, for other texts."""
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= _MOST_S:
        raise UsageError(
            f"{option} {text}: not a time; give a number with s, min, h or d, such as 10min, of at most 30d"
        )
    return seconds


def tier_of(seconds: float) -> Tier:
    """Return the tier for a soak of that length: `full` from two minutes on, else `quick`, to allow several passes."""
    return "full" if seconds >= _LONG_S else "quick"


def make_plan(facts: Facts, settings: Settings, seconds: float) -> Plan:
    """Return the plan of a soak of `seconds`: more passes than fit, because the time ends the last one.

    All devices run the same case at the same time."""
    cases = len({job.case.id for job in planning.make(facts, settings).jobs})
    passes = math.ceil(seconds / (cases * _CASE_S[settings.tier]))
    plan = planning.make(facts, replace(settings, replicates=min(max(passes, 1), _MOST_PASSES)))
    return replace(plan, settings=settings, most_s=seconds).at_once()


def limit_remaining_time(seconds: float, watch: Observer) -> Observer:
    """Return an observer that passes events on to `watch`, with at most the rest of `seconds` as the remaining time."""
    end = time.monotonic() + seconds

    def observe(event: ProgressEvent) -> None:
        """Pass an event on to `watch` with its remaining time limited."""
        watch(replace(event, left_s=min(event.left_s, max(end - time.monotonic(), 0.0))))

    return observe
