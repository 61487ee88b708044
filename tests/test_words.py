"""The words of the code: docstrings are as long as their reader needs, and names say something."""

import ast
import functools
import gc
import importlib
import inspect
import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("gpubench", "suites", "collectors", "reports", "ci")
DOORS = ("suite", "report", "collector", "gate", "importer", "libraries", "language_models", "notebook")
FOR_CALLERS = ("gpubench/plugins/", "gpubench/testing/", "gpubench/api/", "gpubench/cli/")  # protocols, fixtures, help
SAY_NOTHING = {"found", "words", "each", "known", "things", "those", "these", "shown", "told", "theirs"}
# Each of these makes the reader search for the noun that it leaves out: name the noun again, or use a possessive.
RIDDLES = re.compile(
    r"\bthat of\b|\bthose\b|\btheirs\b|\bnone of both\b|\bso many\b"
    r"|\bof (?:its|their) own(?=[.,;:)]| (?:and|that|which|on|in|for)\b|$)"
    r"|(?<!twice )(?<!half )(?<!times )\bas many\b"
    r"|\bwhose\b[^.;]*\b(?:this|these) (?:is|are|was|were)\b|\bwhat (?:is|was)\b[^.;]*\bof (?:it|them|one|each)\b",
    re.IGNORECASE,
)
LINES_BEHIND_DOORS = 3  # lines of text, besides sources
Function = ast.FunctionDef | ast.AsyncFunctionDef
Described = ast.ClassDef | Function
Documented = ast.Module | Described


def code():
    for room in ROOMS:
        yield from (path.relative_to(ROOT) for path in sorted((ROOT / room).rglob("*.py")))


@pytest.fixture(scope="module")
def parsed():
    """Yield what `described` gives of every file of the code, and search for no garbage meanwhile."""
    gc.disable()
    files = [(path, ast.parse((ROOT / path).read_text(encoding="utf-8"))) for path in code()]
    yield [(path, *named) for path, tree in files for named in described(tree)]
    gc.enable()


def described(node, owner=""):
    """Yield the classes, functions and methods of a file with their full names, without those inside functions."""
    for inner in node.body:
        if isinstance(inner, Described):
            yield f"{owner}{inner.name}", inner
        if isinstance(inner, ast.ClassDef):
            yield from described(inner, f"{owner}{inner.name}.")


def prose(source):
    """Yield the docstrings and the blocks of comments of a file, each on one line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented):
            yield " ".join((ast.get_docstring(node) or "").split())
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = enumerate(token for token in tokens if token.type == tokenize.COMMENT)
    for _, block in itertools.groupby(comments, key=lambda comment: comment[1].start[0] - comment[0]):
        yield " ".join(token.string.lstrip("# ") for _, token in block)


def bound_names(function):
    """Return the names to which the function binds a value."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


@functools.cache
def at_doors():
    exported = set()
    for door in (importlib.import_module(f"gpubench.api.{name}") for name in DOORS):
        for value in (getattr(door, name) for name in getattr(door, "__all__", vars(door))):
            inside = vars(value).values() if inspect.ismodule(value) else (value,)
            exported |= {(v.__module__, v.__qualname__) for v in inside if inspect.isfunction(v) or inspect.isclass(v)}
    return frozenset(exported)


def has_callers(path, name, node):
    """Return whether users read the docstring: of a door's object, a protocol, a fixture, a command, or a case."""
    decorators = (call.func if isinstance(call, ast.Call) else call for call in node.decorator_list)
    is_case = any(isinstance(decorator, ast.Attribute) and decorator.attr == "case" for decorator in decorators)
    module = ".".join(("gpubench" * (path.parts[0] != "gpubench"), *path.with_suffix("").parts)).strip(".")
    is_exported = (module.removesuffix(".__init__"), name.partition(".")[0]) in at_doors()
    return is_case or path.as_posix().startswith(FOR_CALLERS) or is_exported


def names_a_source(text):
    """Return whether a docstring cites a paper, standard, manual or tool, which it may do at any length."""
    return any(mark in text for mark in ("(20", "(19", ", 20", ", 19", " 20", " 19", "et al", "STREAM", "nccl-tests"))


def test_docstrings_are_sentences_and_behind_doors_short(parsed):
    wrong = []
    for path, name, node in parsed:
        text = ast.get_docstring(node) or ""
        if text and text.splitlines()[0][-1] not in ".:":
            wrong.append(f"{path}: {name} has a docstring whose first line is no sentence")
        limit = 1 if node.name.startswith("_") and isinstance(node, Function) else LINES_BEHIND_DOORS
        if sum(map(bool, text.splitlines())) <= limit or has_callers(path, name, node) or names_a_source(text):
            continue
        wrong.append(f"{path}: {name} has more than {limit} lines of docstring")
    assert wrong == []


def test_functions_bind_names_that_say_what_they_hold(parsed):
    wrong = []
    for path, name, node in parsed:
        if isinstance(node, Function) and (bound := SAY_NOTHING & bound_names(node)):
            wrong.append(f"{path}: {name} binds {', '.join(sorted(bound))}")
    assert wrong == []


def test_docstrings_and_comments_hold_no_riddles():
    wrong = []
    for path in code():
        source = (ROOT / path).read_text(encoding="utf-8")
        # Most files need no tokens, because not even their whole text has a riddle.
        if not RIDDLES.search(re.sub(r"\s+(?:# )?", " ", source)):
            continue
        wrong += [f"{path}: “{riddle[0]}”: {text}" for text in prose(source) if (riddle := RIDDLES.search(text))]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "Arguments and errors are those of `hot`.",
        "The rate is that\n    of the slowest GPU.",
        "Make the barriers of `all_meet`, whose arguments these are.",
        "Return what is known of it.",
        "Return copies, so many that none is in the cache.",
        "Make as many rounds as there are elements.",
    ],
)
def test_a_riddle_is_noticed_in_docstrings_and_comments(text):
    comment = "# " + text.replace("\n    ", "\n# ")
    for source in (f'"""{text}"""', comment):
        (riddle,) = filter(None, prose(source))
        assert RIDDLES.search(riddle)


def test_plain_sentences_are_no_riddles():
    for text in (
        "twice as many steps",
        "Like `hot`, for a captured graph.",
        "the folder of gpubench and of its own plugins",
    ):
        assert not RIDDLES.search(text)
