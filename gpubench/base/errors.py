"""Define the errors that a user can act on; any other exception is a bug and keeps its traceback."""


class GpubenchError(Exception):
    """An error whose message is one line for stderr with the next step; `exit_status` is the process's."""

    exit_status = 70


class UsageError(GpubenchError):
    """The arguments are invalid; nothing was measured."""

    exit_status = 2


class CannotJudge(GpubenchError):  # noqa: N818 - a verdict, not an error of ours
    """A gate has nothing to compare; nothing was measured."""

    exit_status = 4


class FileError(GpubenchError):
    """A file cannot be read or is not valid."""

    exit_status = 5


class DeviceError(GpubenchError):
    """A device is unhealthy: it was there and no longer responds."""

    exit_status = 6


class Unavailable(GpubenchError):  # noqa: N818 - the thing is missing
    """A library, driver or device is unavailable.

    `problem` names it and gives the reason, and `remedy` says what to do; an empty remedy means that nothing helps."""

    exit_status = 2

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class OptionalUnavailable(Unavailable):
    """Something is unavailable that most machines do not have: an optional library, counters of newer devices."""


class Skip(Exception):  # noqa: N818 - control flow, not an error
    """A case cannot run here; the message gives the reason.

    It is the only exception that a suite may raise to end a case."""


class SuiteError(GpubenchError):
    """A mistake of a suite's author: the message names the field, its wrong value, and the allowed ones.

    Its case fails."""

    exit_status = 2


class WrongAnswer(Exception):  # noqa: N818 - a finding about the device, not an error of ours
    """A check found the device's output wrong: the case has failed, however fast it was."""


class PeerDied(Exception):  # noqa: N818 - an event that a multi-rank task may expect and time
    """Another rank of this case has ended; `rank` is its number."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} has died")
        self.rank = rank


class GateTimedOut(Exception):  # noqa: N818 - an event: the engine then times single calls without a gate
    """The gate in front of a batch opened by itself, because the batch did not fit the launch queue."""


class Untrustworthy(Exception):  # noqa: N818 - a finding about the measurement, not an error of ours
    """The samples cannot be trusted, so the case is invalid: neither a pass nor a slow result.

    `cause` is a slug of the cause (`device-clock`), and the message gives the reason."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


class BadOutput(Exception):  # noqa: N818 - a finding about a file, to which its reader adds the file's name
    """The output of another tool is damaged, of an unknown tool, or newer than the known versions.

    The text says where."""


class ReaderLeft(GpubenchError):  # noqa: N818 - an event: whoever read standard output has closed it
    """The reader of standard output has closed it. Other tools end with the same exit status at SIGPIPE in a shell."""

    exit_status = 141


class Terminated(BaseException):
    """A signal that ends the process has arrived; `number` is the signal's number.

    It derives from BaseException to pass handlers of plugin errors."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupted(GpubenchError):  # noqa: N818 - the user's wish
    """SIGINT (130), SIGTERM (143) or SIGHUP (129) ended the command; its measurements are kept."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status
