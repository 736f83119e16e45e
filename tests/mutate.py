"""Mutation testing: change one operator or number, run the tests of its module, and list changes that none notices.

    python -m tests.mutate [MODULE ...] [--minutes 18] [--seed 0] [--jobs 2]

A mutant is one changed comparison, arithmetic or boolean operator, number or condition of a module in ``TESTS``. Its
tests run in a child of a process that has imported the heavy libraries already, which saves seconds for each. Mutants
are tried in random order until the minutes are over; modules of ``PAPER``, which hold the paper's equations, come
first, and a survivor there is a failure. CONTRIBUTING.md says why it is not mutmut or cosmic-ray.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

REPO = Path(__file__).resolve().parent.parent
PAPER = ("core.objective", "core.schedule", "core.spsa", "methods.fozo.method", "methods.common.matching")
TESTS = {
    "core.objective": "core/test_objective.py",
    "core.schedule": "core/test_schedule.py",
    "core.spsa": "core/test_spsa.py",
    "core.one_sided": "core/test_one_sided.py core/test_optimizer.py",
    "methods.fozo.method": "methods/fozo/test_fozo.py methods/test_registry.py methods/test_golden.py",
    "methods.common.matching": "methods/fozo/test_fozo.py methods/test_registry.py methods/test_golden.py",
    "core.cmaes": "core/test_cmaes.py",
    "core.content": "core/test_content.py",
    "core.descriptor": "core/test_descriptor.py",
    "core.moments": "core/test_moments.py",
    "core.noise": "core/test_spsa.py core/test_cmaes.py",
    "core.statistics": "core/test_statistics.py",
    "core.normalisation": "core/test_normalisation.py engines/test_images.py",
    "monitor.accuracy": "monitor/test_guarded.py",
    "monitor.monitor": "monitor/test_guarded.py monitor/test_monitor.py",
    "monitor.faults": "monitor/test_faults.py",
    "methods.pea": "methods/test_pea.py",
    "state": "test_state.py",
    "methods.method": "methods/test_contract.py",
    "methods.common.wrapper": "methods/test_wrappers.py",
    "methods.common.journal": "methods/fozo/test_journal.py",
    "methods.common.layernorm": "methods/test_tent.py methods/test_sar.py methods/test_golden.py",
    "methods.common.twin": "methods/test_twins.py methods/test_tent.py",
    "monitor.drift": "monitor/test_drift.py",
    "serve.pool": "serve/test_cameras.py",
}
Place = tuple[tuple[str, int | None], ...]
"""The way to a node from the root: field and position in each."""
LIMIT = 60
"""Seconds for one mutant; a longer run counts as noticed."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.USub: ast.UAdd, ast.Not: ast.UAdd,
}  # fmt: skip


def is_left_out(node: ast.AST, parent: ast.AST) -> bool:
    """Annotations, error messages, and which axis: -1 and 1 are often the same."""
    hint = node in (getattr(parent, "annotation", None), getattr(parent, "returns", None))
    return hint or isinstance(node, ast.Raise | ast.Assert) or (isinstance(node, ast.keyword) and node.arg == "axis")


def places(tree: ast.AST, path: Place = ()) -> Iterator[Place]:
    """All nodes that can be changed."""
    for field, value in ast.iter_fields(tree):
        for position, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or is_left_out(node, tree):
                continue
            here = (*path, (field, position))
            number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
            if type(node) in SWAPS or number or isinstance(node, ast.If | ast.IfExp):
                yield here
            yield from places(node, here)


def changed(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Constant):
        value: Any = node.value
        node.value = value + 1 if type(value) is int else 2 * value + (value == 0)
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        return SWAPS[type(node)]()
    return node


def mutant(tree: ast.Module, path: Place) -> tuple[ast.Module, str]:
    """A copy of the module with one node changed, and a line that shows the change."""
    root = copy.deepcopy(tree)
    chain: list[Any] = [root]
    for field, position in path:
        value = getattr(chain[-1], field)
        chain.append(value if position is None else value[position])
    node = chain.pop()
    around = next(each for each in reversed(chain) if hasattr(each, "lineno") or each is root)
    line, before = getattr(node, "lineno", getattr(around, "lineno", 0)), ast.unparse(around).splitlines()[0]
    field, position = path[-1]
    if position is None:
        setattr(chain[-1], field, changed(node))
    else:
        getattr(chain[-1], field)[position] = changed(node)
    ast.fix_missing_locations(root)
    return root, f"{line}: {before}  ->  {ast.unparse(around).splitlines()[0]}"


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module other code."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self, origin=str(self.path)) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def start(module: str, tree: ast.Module | None) -> int:
    """Run the module's tests in a child: its process id. Without a tree the module is as it is."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    import pytest

    if tree is not None:
        path = REPO / "src" / "fozo" / f"{module.replace('.', '/')}.py"
        sys.meta_path.insert(0, Mutated(f"fozo.{module}", path, tree))
    tests = [str(REPO / "tests" / name) for name in TESTS[module].split()]
    code = pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout"])
    os._exit(int(code))


def finished(running: dict[int, tuple[str, str, float]]) -> list[tuple[int, bool]]:
    """Children that ended, or had to be ended, and whether they noticed."""
    found = []
    for child, (_, _, began) in list(running.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            found.append((child, status != 0))
        elif time.monotonic() - began > LIMIT:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found.append((child, True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as core.spsa; all by default")
    parser.add_argument("--minutes", type=float, default=18.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    os.chdir(REPO)
    for name in ("numpy", "scipy.stats", "scipy.special", "torch", "onnxruntime", "pytest", "hypothesis", "starlette"):
        importlib.import_module(name)
    trees = {
        name: ast.parse((REPO / "src" / "fozo" / f"{name.replace('.', '/')}.py").read_text())
        for name in a.modules or TESTS
    }
    drawn = [(name, path) for name, tree in trees.items() for path in places(tree)]
    random.Random(a.seed).shuffle(drawn)
    drawn.sort(key=lambda each: each[0] not in PAPER)
    for name in trees:
        if os.waitpid(start(name, None), 0)[1] != 0:
            sys.exit(f"the tests of {name} fail without a mutant: {TESTS[name]}")
    began, running, tried, survivors = time.monotonic(), dict[int, tuple[str, str, float]](), 0, list[str]()
    left = iter(drawn)
    while True:
        while len(running) < a.jobs and time.monotonic() < began + 60 * a.minutes:
            following = next(left, None)
            if following is None:
                break
            name, path = following
            tree, words = mutant(trees[name], path)
            running[start(name, tree)] = name, words, time.monotonic()
        if not running:
            break
        for child, noticed in finished(running):
            name, words, _ = running.pop(child)
            tried += 1
            if not noticed:
                survivors.append(f"{name}:{words}")
                print(survivors[-1], flush=True)
        time.sleep(0.02)
    print(f"{tried} of {len(drawn)} mutants tried (seed {a.seed}), {len(survivors)} survived")
    sys.exit(any(each.startswith(PAPER) for each in survivors))


if __name__ == "__main__":
    main()
