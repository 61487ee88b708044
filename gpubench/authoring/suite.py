"""Declare a suite: its topics, its cases with their axes, and the views that show them.

A case builds and returns a Task. It never loops, times, synchronises, prints or formats::

    suite = Suite("sustained memory bandwidth, STREAM kernels", views=[...])

    @suite.case(size_bytes=points(smoke=[2**24], quick=[2**30]), dtype=("float32", "float64"))
    def triad(bench, size_bytes, dtype):
        '''a = b + s·c: three arrays moved, STREAM's counting rule.'''
        ...
        return Task.of(Stage(call, Work(moved=3 * size_bytes), "moved"), check=...)

A suite that is a folder is assembled from its topics: each file of the folder declares the cases that it builds and the
views that show them, and `__init__.py` lists the topics in the order in which they run::

    topic = Topic(views=[...])                       # in _stream.py, whose cases follow: @topic.case(...)
    suite = Suite("memory bandwidth", topics=[_stream.topic, _copies.topic])    # in __init__.py"""

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubench.authoring.axes import Axis, Target, Value, axis_values
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.base.errors import SuiteError
from gpubench.base.units import axis_label
from gpubench.model import Case, KeyFigure, SuiteInfo, View

Builder = Callable[..., Task]


@dataclass(frozen=True, slots=True)
class Definition:
    """A case as declared: its name, the function that builds it, and the other arguments of `Topic.case`."""

    name: str
    build: Builder
    axes: tuple[tuple[str, Axis], ...]
    version: int
    ranks: Callable[[Mapping[str, Value]], int]
    devices: Callable[[Mapping[str, Value]], int]
    spread: Callable[[Mapping[str, Value]], int]
    runtime: Callable[[Mapping[str, Value]], str]
    when: Callable[[Target], bool]
    where: Callable[[Target, Mapping[str, Value]], bool]
    headline: Mapping[str, Value] | None


class Topic:
    """Cases of a suite that one file builds, in declared order, with the views that show them."""

    def __init__(self, views: Sequence[View] = ()) -> None:
        self.views = tuple(views)
        self.definitions: dict[str, Definition] = {}
        self.module = ""

    def case(
        self,
        *,
        version: int = 1,
        ranks: int | Callable[[Mapping[str, Value]], int] = 1,
        devices: Callable[[Mapping[str, Value]], int] = lambda _: 1,
        spread: Callable[[Mapping[str, Value]], int] = lambda _: 1,
        runtime: Callable[[Mapping[str, Value]], str] = lambda _: "",
        when: Callable[[Target], bool] = lambda _: True,
        where: Callable[[Target, Mapping[str, Value]], bool] = lambda *_: True,
        headline: Mapping[str, Value] | None = None,
        **axes: Axis,
    ) -> Callable[[Builder], Builder]:
        """Return a decorator for a function that builds a case from a Bench and the values of the axes.

        Each axis is a keyword: values, `points(...)`, or a function of the Target that returns either. `ranks` is the
        number of processes that build and run the case together, or a function of the parameters that returns it.
        `devices` returns, from the parameters, the number of devices that the ranks use: the measured device and its
        first peers. (An axis `peer` names the second device itself.) `spread` returns, from the parameters, the number
        of nodes over which the ranks are distributed evenly; each node has that many devices. `runtime` returns a
        name for what other cases must not share a process with, such as libraries that the case loads: cases of one
        runtime run one after another, in their own workers. `when` returns False for a Target on which the case is left
        out, and `where` returns False for a Target and single points of the axes that are left out. Increase `version`
        when the method changes. `headline` marks a case that represents the suite in a headline run: among the points
        that share most of these values, the last that can run.

        The decorator raises TypeError if the function does not take its axes in that order, or if the name is taken."""

        def declare(build: Builder) -> Builder:
            """Declare the case that `build` builds, and return `build` unchanged.

            The case has the name of `build` without underscores at its ends. Raises TypeError if the parameters of
            `build` after the first are not the axes in the same order, or if the name is taken."""
            wanted = list(inspect.signature(build).parameters)[1:]
            if wanted != list(axes):
                raise TypeError(f"{build.__qualname__}{wanted} does not take its axes {list(axes)} in that order")
            self.module = build.__module__
            name = build.__name__.strip("_")
            count = ranks if callable(ranks) else lambda _: ranks
            places = (count, devices, spread, runtime)
            self._declare(Definition(name, build, tuple(axes.items()), version, *places, when, where, headline))
            return build

        return declare

    def _declare(self, definition: Definition) -> None:
        """Add a case in declared order. Raises TypeError if the suite has a case of the same name."""
        if definition.name in self.definitions:
            raise TypeError(f"two cases are called {definition.name}; rename one")
        self.definitions[definition.name] = definition


class Suite(Topic):
    """A named set of cases: its own and its topics' cases; its .cu files are in the same folder.

    It has the name of its file, or, if it is assembled from topics, of their folder."""

    def __init__(
        self,
        summary: str,
        views: Sequence[View] = (),
        topics: Sequence[Topic] = (),
        key_figures: Sequence[KeyFigure] = (),
    ) -> None:
        """Create a suite with its own views, the cases and views of its topics, and its key figures."""
        super().__init__([*views, *(view for topic in topics for view in topic.views)])
        self.summary, self.key_figures = summary, tuple(key_figures)
        for topic in topics:
            self.module = topic.module.rpartition(".")[0]
            for definition in topic.definitions.values():
                self._declare(definition)

    @property
    def name(self) -> str:
        """The name of the suite, which is the name of its file or folder."""
        return self.module.rpartition(".")[2]

    @property
    def package(self) -> str:
        """The name of the package with the suite's .cu files: the suite itself if it is a folder, else its parent."""
        is_folder = hasattr(sys.modules.get(self.module), "__path__")
        return self.module if is_folder else self.module.rpartition(".")[0]

    def cases(self, target: Target) -> Iterator[Case]:
        """Yield every case that this suite has in the tier and on the device of `target`, without using the device.

        The cases come in the order of declaration; within a declaration, the values of the last axis change fastest.
        Raises SuiteError if the values of an axis are not valid."""
        for definition in self.definitions.values():
            if not definition.when(target):
                continue
            names = [axis for axis, _ in definition.axes]
            for row in itertools.product(*(axis_values(axis, target) for _, axis in definition.axes)):
                params = tuple(zip(names, row, strict=True))
                if not definition.where(target, dict(params)):
                    continue
                ranks, devices = definition.ranks(dict(params)), definition.devices(dict(params))
                yield Case(self.name, definition.name, params, definition.version, ranks, devices)

    def build(self, bench: Bench) -> Task:
        """Return the task of `bench.case`, built by the function that declares the case.

        Raises Skip if the case cannot run here, and SuiteError if the function returns no Task or a Task with a wrong
        field."""
        task: object = self.definitions[bench.case.name].build(bench, **dict(bench.case.params))
        if not isinstance(task, Task):
            raise SuiteError(f"the case returned {type(task).__name__} {task!r:.80}, not a Task")
        return task

    def axis_names(self) -> list[str]:
        """Return the names of the axes of all cases as ids write them, each once."""
        names = (axis for definition in self.definitions.values() for axis, _ in definition.axes)
        return list(dict.fromkeys(map(axis_label, names)))

    def info(self) -> SuiteInfo:
        """Return the suite's name, summary, views and key figures, which reports need.

        Raises SuiteError if a key figure belongs to no case of this suite."""
        for figure in self.key_figures:
            if figure.case not in self.definitions:
                raise SuiteError(f"the key figure {figure.title!r} is of {figure.case!r}; {self.name} has no such case")
        return SuiteInfo(self.name, self.summary, self.views, self.key_figures)
