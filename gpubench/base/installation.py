"""Check that the packages that gpubench imports are installed, and give the pip command for a missing one."""

import contextlib
import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path

from gpubench import DISTRIBUTION
from gpubench.base.errors import Unavailable

# name of the imported module → its distribution, as pyproject.toml names it
PACKAGES = {
    "jinja2": "jinja2",
    "numpy": "numpy",
    "pandas": "pandas",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pynvml": "nvidia-ml-py",
    "rich": "rich",
    "typer": "typer",
}


def check() -> None:
    """Check that every package in PACKAGES is installed, without importing any of them.

    Raises Unavailable for the first missing one, with the pip command that installs it."""
    for module in PACKAGES:
        if importlib.util.find_spec(module) is None:
            raise _unavailable(module, "is not installed")


_ROOT = Path(__file__).parents[2]  # the clone, if gpubench runs from one
_IN_CLONE = "in the clone of gpubench"


def for_gpu() -> str:
    """Return how to install the libraries for a GPU: in a clone by its script, which finds the GPU, else by pip."""
    if (_ROOT / "ci" / "bench.sh").is_file():
        return f"bash ci/bench.sh {_IN_CLONE} (driver ≥ 580 for CUDA 13)"
    return f"pip install '{DISTRIBUTION}[cuda13]' (driver ≥ 580), '[cuda12]' or '[rocm7]'"


def with_extra(name: str) -> str:
    """Return the pip command that installs an extra of gpubench where it runs; in a clone pip finds it installed."""
    return packages(f"'{DISTRIBUTION}[{name}]'")


def packages(requirements: str) -> str:
    """Return the pip command that installs `requirements`, written for a shell, into the environment of gpubench."""
    if Path(sys.prefix) == _ROOT / ".venv":
        return f".venv/bin/pip install {requirements} {_IN_CLONE}"
    return f"pip install {requirements}"


def versions(*distributions: str) -> dict[str, str]:
    """Return the version of each of `distributions` that is installed, by its name."""
    by_name = {}
    for distribution in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_name[distribution] = metadata.version(distribution)
    return by_name


def reason(error: ImportError) -> Unavailable | None:
    """Return the error for a failed import of another package, with the pip command that repairs it.

    The result is None, because it is a bug, if the failed module is gpubench's own or `error` names no module."""
    module = (error.name or "").partition(".")[0]
    if not module or module == __name__.partition(".")[0]:
        return None
    is_missing = isinstance(error, ModuleNotFoundError)
    first_line = str(error).strip().partition("\n")[0]
    return _unavailable(module, "is not installed" if is_missing else f"cannot be imported ({first_line})")


def _unavailable(module: str, problem: str) -> Unavailable:
    """Return the error for the distribution that contains `module`, with the pip command that repairs it."""
    distribution = PACKAGES.get(module, module.replace("_", "-"))
    command = f"{sys.executable} -m pip install --force-reinstall '{_requirement(distribution)}'"
    return Unavailable(f"the Python package {distribution} {problem}", f"install it: {command}")


def _requirement(distribution: str) -> str:
    """Return gpubench's requirement on a distribution (`numpy>=1.26`), or the plain name if there is none."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # gpubench runs from its source folder
        return distribution
    names = (line.partition(";")[0].strip() for line in required if "extra ==" not in line)
    return next((name for name in names if re.split(r"[^\w.-]", name)[0].lower() == distribution), distribution)
