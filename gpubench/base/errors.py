"""What a user can act on. Anything else that is raised is a bug and keeps its traceback."""

from __future__ import annotations


class GpubenchError(Exception):
    """One line for stderr that names the next step; `exit_status` is the process's."""

    exit_status = 70


class UsageError(GpubenchError):
    """The arguments are invalid; nothing was measured."""

    exit_status = 2


class CannotJudge(GpubenchError):  # noqa: N818 - a verdict, not an error of ours
    """A gate has nothing that it may hold against each other; nothing was measured."""

    exit_status = 4


class FileError(GpubenchError):
    """A file that cannot be read or trusted."""

    exit_status = 5


class DeviceError(GpubenchError):
    """The device is unhealthy: it was there and no longer answers."""

    exit_status = 6


class Missing(GpubenchError):  # noqa: N818 - the thing is missing
    """A library, driver or device that is not here; `how` says how to get it."""

    exit_status = 2

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what}; {how}" if how else what)
        self.what = what
        self.how = how


class Lacking(Missing):
    """What this machine does not have and need not have: an optional library, counters of newer devices."""


class Skip(Exception):  # noqa: N818 - control flow, not an error
    """A case that cannot run here, and why: the only control flow a suite's author has."""


class SuiteError(GpubenchError):
    """A mistake of a suite's author: which field of which value is wrong, and what it has to be. It costs its case."""

    exit_status = 2


class WrongAnswer(Exception):  # noqa: N818 - a finding about the device, not an error of ours
    """A check found the device's output wrong: the case is failed, however fast."""


class PeerDied(Exception):  # noqa: N818 - an event that a multi-rank task may expect and time
    """Another rank of this case has ended; `rank` says which."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has died")
        self.rank = rank


class GateTimedOut(Exception):  # noqa: N818 - an event: the engine then times single calls without a gate
    """The gate in front of a batch opened by itself: the batch did not fit the launch queue."""


class Untrustworthy(Exception):  # noqa: N818 - a finding about the measurement, not an error of ours
    """The samples cannot be trusted: the case is invalid, neither a pass nor a slow result."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


class BadOutput(Exception):  # noqa: N818 - a finding about a file, to which its reader adds the file's name
    """Another tool's output that is damaged, foreign or newer than what is known: where and how, in words."""


class ReaderLeft(GpubenchError):  # noqa: N818 - an event: whoever read standard output has closed it
    """The reader of standard output has gone away. The status is what a shell reports of other tools: SIGPIPE."""

    exit_status = 141


class Terminated(BaseException):
    """A signal that ends the process has arrived. It passes every boundary that catches the errors of plugins."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupted(GpubenchError):  # noqa: N818 - the user's wish
    """SIGINT (130), SIGTERM (143) or SIGHUP (129); what was measured is kept."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status
