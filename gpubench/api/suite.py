"""The names with which a suite is written."""

from gpubench.authoring.axes import Target, beyond_quick, on_gpu, on_host, points, powers_of_two
from gpubench.authoring.bench import Bench, Words, random_words
from gpubench.authoring.board import Board, RankLostError, StalledError
from gpubench.authoring.effort import POINT, TIER, Effort
from gpubench.authoring.helper import Helper, HelperEndedError
from gpubench.authoring.suite import Suite, Topic
from gpubench.authoring.task import Observation, Observed, Profile, Stage, Task, expect
from gpubench.base import installation, units
from gpubench.base.errors import (
    DeviceError,
    FileError,
    PeerDied,
    Skip,
    SuiteError,
    Unavailable,
    Untrustworthy,
    UsageError,
    WrongAnswer,
)
from gpubench.model import Architecture, Case, DataFile, Device, Facts, KeyFigure, View, Work
from gpubench.plugins.backend import Handle, Kernel, Mode, SharedBuffer, SharedEvent, SharedMemory, Traits

__all__ = [
    "POINT",
    "TIER",
    "Architecture",
    "Bench",
    "Board",
    "Case",
    "DataFile",
    "Device",
    "DeviceError",
    "Effort",
    "Facts",
    "FileError",
    "Handle",
    "Helper",
    "HelperEndedError",
    "Kernel",
    "KeyFigure",
    "Mode",
    "Observation",
    "Observed",
    "PeerDied",
    "Profile",
    "RankLostError",
    "SharedBuffer",
    "SharedEvent",
    "SharedMemory",
    "Skip",
    "Stage",
    "StalledError",
    "Suite",
    "SuiteError",
    "Target",
    "Task",
    "Topic",
    "Traits",
    "Unavailable",
    "Untrustworthy",
    "UsageError",
    "View",
    "Words",
    "Work",
    "WrongAnswer",
    "beyond_quick",
    "expect",
    "installation",
    "on_gpu",
    "on_host",
    "points",
    "powers_of_two",
    "random_words",
    "units",
]
