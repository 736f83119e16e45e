"""What the import linter cannot see: private names across packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import REPO
from tests.mutate import PAPER, TESTS

SOURCE = REPO / "src" / "fozo"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
PRIVATE = re.compile(r"_[a-z]")
OWN = {"self", "cls", "super()", "other"}
ELSEWHERE = {"_replace", "_asdict", "_make", "_fields", "_exit", "_orig_mod"}
"""Names of other libraries that are public, or have no public form (torch.compile)."""


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def private_uses(path: Path, tree: ast.Module) -> Iterator[str]:
    """Private names of other packages that a module imports or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fozo."):
            parts = (node.module or "").split(".")
            names = [*parts, *(alias.name for alias in node.names)]
            if parts[1] != package(path) and any(PRIVATE.match(name) for name in names):
                yield f"{path.relative_to(REPO)}:{node.lineno}: from {node.module} import {', '.join(names)}"
        if isinstance(node, ast.Attribute) and PRIVATE.match(node.attr) and node.attr not in ELSEWHERE:
            holder = ast.unparse(node.value)
            if holder not in OWN:
                yield f"{path.relative_to(REPO)}:{node.lineno}: {holder}.{node.attr}"


def defined(node: ast.AST) -> Iterator[str]:
    """Names that a node defines: of functions, classes, arguments, variables and attributes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def test_no_package_reads_private_names_of_another() -> None:
    """A private name may be read on self, and wherever its own package defines it."""
    of_package: dict[str, set[str]] = {}
    for path, tree in MODULES.items():
        of_package.setdefault(package(path), set()).update(name for node in ast.walk(tree) for name in defined(node))
    found = [
        use
        for path, tree in MODULES.items()
        for use in private_uses(path, tree)
        if ": from " in use or use.rpartition(".")[2] not in of_package[package(path)]
    ]
    assert not found, "\n".join(found)


def test_mutation_testing_knows_its_modules_and_tests() -> None:
    for module, tests in TESTS.items():
        assert (SOURCE / f"{module.replace('.', '/')}.py").exists(), module
        assert [name for name in tests.split() if not (REPO / "tests" / name).exists()] == [], module
    assert set(PAPER) <= TESTS.keys()
