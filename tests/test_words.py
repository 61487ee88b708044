"""The words of the code: class names are unique, functions are described and name their errors, names say something."""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("gpubench", "suites", "collectors", "reports", "ci")
SAY_NOTHING = {"found", "words", "each", "known", "things", "those", "these", "shown", "told", "theirs"}
SHORT = 6  # lines of a function that its name and signature may explain alone
# `Exit` ends a command, and a docstring of a command is its help; a case's docstring is its description in tables.
NOT_NAMED = {"Exit", "NotImplementedError"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def code() -> Iterator[Path]:
    """Yield the files of the code, relative to the repository."""
    for room in ROOMS:
        yield from (path.relative_to(ROOT) for path in sorted((ROOT / room).rglob("*.py")))


def functions_of(path: Path) -> Iterator[tuple[Path, Function]]:
    """Yield the functions and methods of a file, each with the file, without those inside functions."""
    yield from ((path, function) for function in functions(ast.parse((ROOT / path).read_text(encoding="utf-8"))))


def functions(node: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from functions(inner)
        elif isinstance(inner, Function):
            yield inner


def bound_names(function: Function) -> set[str]:
    """Return the names to which the function binds a value."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def raised(function: Function) -> set[str]:
    """Return the names of the errors that the function raises itself, not in functions inside it."""
    inside = {
        id(node)
        for inner in ast.walk(function)
        if isinstance(inner, Function) and inner is not function
        for node in ast.walk(inner)
    }
    raises = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and id(node) not in inside)
    errors = (error.func if isinstance(error, ast.Call) else error for error in raises)
    return {error.id for error in errors if isinstance(error, ast.Name) and error.id[0].isupper()} - NOT_NAMED


def is_described_for_users(path: Path, function: Function) -> bool:
    """Return whether the docstring is the help of a command or the description of a case."""
    decorators = (node.func if isinstance(node, ast.Call) else node for node in function.decorator_list)
    is_case = any(isinstance(node, ast.Attribute) and node.attr == "case" for node in decorators)
    return is_case or path.parts[:2] == ("gpubench", "cli")


def test_no_two_classes_share_a_name() -> None:
    texts = (path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    names = Counter(name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_function_is_described_names_its_errors_and_binds_names_that_say_what_they_hold() -> None:
    """One test for all of them, because reading the code is most of its time."""
    wrong = []
    for path, function in itertools.chain.from_iterable(map(functions_of, code())):
        text, name = ast.get_docstring(function) or "", f"{path}: {function.name}"
        is_long = function.end_lineno - function.lineno >= SHORT and not function.name.startswith("__")  # type: ignore[operator]
        if (is_long and not text) or (text and text.splitlines()[0][-1] not in ".:"):
            wrong.append(f"{name} has no docstring whose first line is a sentence")
        is_public = not function.name.startswith("_") and not is_described_for_users(path, function)
        if is_public and "aise" not in text and (silent := {error for error in raised(function) if error not in text}):
            wrong.append(f"{name} raises {', '.join(sorted(silent))} and does not say so")
        if bound := SAY_NOTHING & bound_names(function):
            wrong.append(f"{name} binds {', '.join(sorted(bound))}")
    assert wrong == []
