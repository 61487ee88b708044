"""Find the commit that made a case slower: `git bisect`, whose verdicts come from two builds measured in turn."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpubench.base.errors import CannotJudge, GpubenchError, Interrupted, UsageError
from gpubench.tools.gating.ab import Build

_FIRST_BAD = re.compile(r"^([0-9a-f]{40,64}) is the first bad commit$", re.MULTILINE)
_COMMIT = re.compile(r"^[0-9a-f]{40,64}$", re.MULTILINE)
_WORDS = {0: "good", 1: "bad"}  # git's word for the exit status of a gate; any other status cannot judge, and skips
_PLACE = "{}"  # stands for the folder of a checkout in the command of gpubench


@dataclass(frozen=True, slots=True)
class Suspects:
    """The commits that may have made a case slower: one, or several if the commits between could not be judged."""

    commits: tuple[str, ...]
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Bisection:
    """A search in a repository. `build` runs in each checkout, and `command` is the gpubench that it leaves there.

    `judge` measures the builds of the good commit and of another one into a new folder, and returns the gate's status.
    """

    repository: Path
    build: tuple[str, ...]
    command: str
    folder: Path
    judge: Callable[[tuple[Build, Build], Path], int]
    tell: Callable[[str], None]

    def find(self, good: str, bad: str) -> Suspects:
        """Return the first commit after `good` that is slower; raises CannotJudge if `bad` is not."""
        ends = good_commit, bad_commit = self._commit(good), self._commit(bad)
        if self._git("merge-base", "--is-ancestor", *ends).returncode:
            raise UsageError(
                f"{good} is no ancestor of {bad}; name an earlier commit that is fast, then one that is slow"
            )
        with self._checkout("good", good_commit) as base, self._checkout("other", bad_commit) as other:
            for name, place in ((good, base), (bad, other)):
                if not self._is_built(place):
                    raise UsageError(f"{name} cannot be built: {shlex.join(self.build)} failed; see {place}.log")
            if (word := self._word(base, other, bad_commit)) != "bad":
                reason = "it is not slower" if word == "good" else "the gate cannot judge it"
                raise CannotJudge(f"{bad} against {good}: {reason}, so there is no commit to find")
            return self._walk(base, other, ends)

    def _walk(self, base: Path, other: Path, ends: tuple[str, str]) -> Suspects:
        skipped, answer = 0, self._step(other, "start", *reversed(ends))
        while not (first_bad := _FIRST_BAD.search(answer.stdout)):
            if commits := _COMMIT.findall(answer.stdout):  # only commits that were skipped are left
                return Suspects(tuple(commits), skipped)
            if answer.returncode:
                raise CannotJudge(f"git bisect: {answer.stderr.strip() or answer.stdout.strip()}")
            commit = self._git("rev-parse", "HEAD", cwd=other).stdout.strip()
            word = self._word(base, other, commit) if self._is_built(other) else "skip"
            skipped += word == "skip"
            self.tell(f"{commit[:12]}: {word}")
            answer = self._step(other, word)
        return Suspects((first_bad[1],), skipped)

    def _step(self, other: Path, *words: str) -> subprocess.CompletedProcess[str]:
        self._git("reset", "--hard", "--quiet", cwd=other)  # a build may have changed files that git tracks
        return self._git("bisect", *words, cwd=other)

    def _word(self, base: Path, other: Path, commit: str) -> str:
        """Return git's word for a built commit: good, bad, or skip if it cannot be judged."""
        builds = tuple(
            Build.parse(name, self.command.replace(_PLACE, shlex.quote(str(place))))
            for name, place in (("a", base), ("b", other))
        )
        try:
            status = self.judge((builds[0], builds[1]), self.folder / commit[:12])
        except Interrupted:
            raise
        except GpubenchError as error:
            self.tell(f"{commit[:12]}: {error}")
            return "skip"
        return _WORDS.get(status, "skip")

    def _is_built(self, place: Path) -> bool:
        """Run the build in a checkout with its output in a file beside it; return whether it succeeded."""
        with Path(f"{place}.log").open("ab") as log:
            done = subprocess.run(self.build, cwd=place, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def _commit(self, name: str) -> str:
        done = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if done.returncode:
            raise UsageError(f"{name} is no commit of the repository {self.repository}")
        return done.stdout.strip()

    @contextmanager
    def _checkout(self, name: str, commit: str) -> Iterator[Path]:
        """Yield a new checkout, which leaves the user's files alone, and remove it afterwards."""
        place = self.folder / name
        if (done := self._git("worktree", "add", "--detach", str(place), commit)).returncode:
            raise UsageError(f"git made no checkout in {place}: {done.stderr.strip()}")
        try:
            yield place
        finally:
            self._git("worktree", "remove", "--force", str(place))

    def _git(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = ["git", "-c", "advice.detachedHead=false", *words]
        try:
            return subprocess.run(
                command,
                cwd=cwd or self.repository,
                env=os.environ | {"LC_ALL": "C"},  # its sentences are read
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except FileNotFoundError as error:
            raise UsageError("git is not installed; install it, and try again") from error
