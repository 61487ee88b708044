"""What an installation needs: the packages that are imported, and the pip command for one that is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata

from gpubench import DISTRIBUTION
from gpubench.base.errors import Missing

# what is imported → the distribution that has it, as pyproject.toml names it
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
    """Raise Missing for a package that gpubench cannot do without and that is not installed. It imports none."""
    for module in PACKAGES:
        if importlib.util.find_spec(module) is None:
            raise _missing(module, "is not installed")


def reason(error: ImportError) -> Missing | None:
    """Return what to install for an import that failed; None where a module of ours is missing, which is a bug."""
    module = (error.name or "").partition(".")[0]
    if not module or module == __name__.partition(".")[0]:
        return None
    is_absent = isinstance(error, ModuleNotFoundError)
    first_line = str(error).strip().partition("\n")[0]
    return _missing(module, "is not installed" if is_absent else f"cannot be imported ({first_line})")


def _missing(module: str, what: str) -> Missing:
    distribution = PACKAGES.get(module, module.replace("_", "-"))
    command = f"{sys.executable} -m pip install --force-reinstall '{_requirement(distribution)}'"
    return Missing(f"the Python package {distribution} {what}", f"install it: {command}")


def _requirement(distribution: str) -> str:
    """Return what gpubench requires of a distribution (`numpy>=1.26`); of one that it does not name, the name."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from its source folder
        return distribution
    names = (line.partition(";")[0].strip() for line in required if "extra ==" not in line)
    return next((name for name in names if re.split(r"[^\w.-]", name)[0].lower() == distribution), distribution)
