"""Find out which counters a machine refuses, and why."""

from collections.abc import Callable, Mapping


def refusals(
    readers: Mapping[str, Callable[[], object]], errors: type[Exception] | tuple[type[Exception], ...]
) -> dict[str, str]:
    """Call each reader once; return the counters whose reader raises one of `errors`, with the error's text."""
    reasons = {}
    for name, read in readers.items():
        try:
            read()
        except errors as error:
            reasons[name] = str(error) or type(error).__name__
    return reasons
