"""The house rules that a program can check (STYLE.md); ruff, mypy and import-linter check the others.

Each exception stands in an allow-list with its reason, and an entry that is no longer needed fails.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "surefoot"

LINES_MAX = 400
LONG_MODULES: dict[str, str] = {
    "src/surefoot/loop/steps.py": "the public face of the loop: a third of it is what users read",
    "src/surefoot/agent/attempts.py": "one state machine, the life of a group; its parts are elsewhere",
}
"""Path under the root → why it may have more than `LINES_MAX` lines."""

FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS: dict[str, str] = {}
"""Path:qualified name → why it may have more than `FUNCTION_LINES_MAX` lines."""

BANNED_WORDS = {"Manager", "Handler", "Helper", "Helpers", "Util", "Utils", "Context", "Base"}
"""Words that say nothing about what a class is; name the thing instead."""

EXECUTING_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "runpy", "shelve"}
EXECUTING_CALLS = {"eval", "exec", "torch.load", "torch.save"}
EXECUTING: dict[str, str] = {}
"""Path:name → why this module may execute what it reads, or write what only execution can read."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:home|root|Users|work|opt)/[\w.-]+")
# Written so that this file doesn't match itself.
REGISTRY = re.compile(r"pypi\.(org|io)|python" + r"hosted\.|download\.py" + "torch|index-" + "url")
LATER = re.compile(r"\b(TO" + "DO|FIX" + "ME|X" + r"XX)\b")


@dataclass(frozen=True)
class Module:
    """A Python file of the repository, read and parsed once."""

    path: Path
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Module:
        """Read and parse one file."""
        text = path.read_text(encoding="utf-8")
        return cls(path, text, ast.parse(text, filename=str(path)))

    @property
    def name(self) -> str:
        """Return the path under the root."""
        return self.path.relative_to(ROOT).as_posix()


@cache
def files() -> tuple[Path, ...]:
    """Return every file that is, or is about to be, under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


@cache
def modules() -> tuple[Module, ...]:
    """Return every Python file of the repository."""
    return tuple(Module.read(path) for path in files() if path.suffix == ".py")


def shipped(*folders: str) -> list[Module]:
    """Return the modules of the package, or of these folders under the root."""
    roots = [ROOT / folder for folder in folders] or [PACKAGE]
    return [module for module in modules() if any(module.path.is_relative_to(root) for root in roots)]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (qualified name, node) of every function and method, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function):
            name = f"{prefix}{node.name}"
            if isinstance(node, Function):
                yield name, node
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def over(found: dict[str, int], limit: int, allowed: dict[str, str]) -> list[str]:
    """Return what is over the limit without a reason, and which reasons have outlived their cause."""
    long = [f"{name}: {n} lines" for name, n in found.items() if n > limit and name not in allowed]
    stale = [f"{name}: needs no exception any more" for name in allowed if found.get(name, 0) <= limit]
    return long + stale


def test_modules_hold_one_idea() -> None:
    """A module of the package, an example or a benchmark has at most 400 lines, or a reason."""
    found = {module.name: module.text.count("\n") for module in shipped("src", "examples", "benchmarks")}
    assert over(found, LINES_MAX, LONG_MODULES) == []


def test_functions_fit_on_a_screen() -> None:
    """A function has at most 70 lines, or a reason."""
    found = {
        f"{module.name}:{name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in shipped("src", "examples", "benchmarks")
        for name, node in functions(module.tree)
    }
    assert over(found, FUNCTION_LINES_MAX, LONG_FUNCTIONS) == []


def test_names_say_what_a_thing_is() -> None:
    """No class and no module of the package is called by a word that fits anything."""
    found = []
    for module in shipped():
        words = {word.title() for word in module.path.stem.split("_")}
        found += [f"{module.name}: module name" for _ in words & BANNED_WORDS]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and BANNED_WORDS & set(re.findall(r"[A-Z][a-z]*", node.name)):
                found.append(f"{module.name}:{node.lineno}: class {node.name}")
    assert found == []


def executes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of everything in a module that runs what it reads, or writes what must be run."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    if name.name.split(".")[0] in EXECUTING_MODULES:
                        yield node.lineno, name.name
            case ast.ImportFrom(module=str(source)) if source.split(".")[0] in EXECUTING_MODULES:
                yield node.lineno, source
            case ast.Call() if (called := ast.unparse(node.func)) in EXECUTING_CALLS:
                yield node.lineno, called
            case ast.keyword(arg="allow_pickle") if ast.unparse(node.value) != "False":
                yield node.lineno, "allow_pickle"


def test_nothing_read_is_executed() -> None:
    """The package has no pickle, no torch.load and no eval (invariant 12), or a reason."""
    found = {f"{m.name}:{name}": line for m in shipped() for line, name in executes(m.tree)}
    assert [f"{name} (line {line})" for name, line in found.items() if name not in EXECUTING] == []
    assert [name for name in EXECUTING if name not in found] == []


def undocumented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what is public and has no docstring: the module, classes, functions, methods."""
    if tree.body and not ast.get_docstring(tree):
        yield 1, "module"
    public = [("", tree.body)]
    while public:
        prefix, body = public.pop()
        for node in body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
            if not ast.get_docstring(node) and not marks & {"overload", "setter", "override"}:
                yield node.lineno, prefix + node.name
            if isinstance(node, ast.ClassDef):
                public.append((f"{prefix}{node.name}.", node.body))


def test_what_is_public_is_documented() -> None:
    """Every public module, class, function and method of the package has a docstring."""
    found = [f"{m.name}:{line}: {name}" for m in shipped() for line, name in undocumented(m.tree)]
    assert found == []


def test_tests_say_what_holds() -> None:
    """Every test has a docstring: the sentence that is true when it passes."""
    found = [
        f"{module.name}:{node.lineno}: {name}"
        for module in shipped("tests")
        for name, node in functions(module.tree)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert found == []


def test_unit_tests_never_sleep() -> None:
    """No unit test waits for a wall clock: time comes in as a value."""
    found = []
    for module in shipped("tests/unit"):
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                    found.append(f"{module.name}:{node.lineno}")
                case ast.ImportFrom(module="time", names=names) if "sleep" in {name.name for name in names}:
                    found.append(f"{module.name}:{node.lineno}")
    assert found == []


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Return file, line and match of every line of these text files that the pattern is found in."""
    found = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    return found


def test_no_machine_is_named() -> None:
    """No file holds a path of somebody's machine, or the address of a package registry."""
    assert lines_with(MACHINE_PATH, list(files())) == []
    assert lines_with(REGISTRY, list(files())) == []


def test_nothing_is_put_off() -> None:
    """No Python file marks something as left for later: an open point is an issue."""
    assert lines_with(LATER, [module.path for module in modules()]) == []


def test_importing_surefoot_is_light() -> None:
    """`import surefoot` loads neither torch nor NumPy, nor what only the command line needs."""
    code = "import surefoot, sys; print(*{'torch', 'numpy', 'click', 'rich'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_every_pin_is_exact() -> None:
    """constraints.txt names a version and nothing else: no range, no address, no local build."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
