"""How many functions of fozo a newcomer has to follow from ``fozo bench`` to the first batch; counted, not guessed.

    python benchmarks/entered.py
    PYTHONPATH=OLD/src python benchmarks/entered.py --method fozo  # another tree, where align is called otherwise

A recipe of one row and two batches is run on the bundled model and images, in this process, under ``sys.setprofile``.
The rule, the same for every tree: a function counts once, by its code object, if its file lies in the package ``fozo``
and it is entered in the main thread before the first call of a method (a function ``__call__`` below ``fozo/methods``).
What runs while a module is being imported does not count (module and class bodies, decorators, recipes and other
constants), nor do comprehensions, generator expressions and lambdas, which are read where they stand; nor what
``dataclass`` and ``typing`` write, which has no line of source to read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType

RECIPE = """
title = "One row"
calibration = 64
[stream]
kinds = ["brightness"]
severity = 3
images = 64
batch_size = 32
[[row]]
label = "one"
method = "{method}"
"""


def entered(method: str = "align") -> list[str]:
    """Run the recipe; return ``file: function`` for each distinct function entered before the first batch."""
    spec = find_spec("fozo")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    sample = package / "data" / "sample"
    from fozo.cli import main

    found: dict[CodeType, None] = {}
    importing = 0
    arrived = False

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing, arrived
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or importing or arrived or not code.co_filename.startswith(f"{package}/"):
            return
        if code.co_name == "__call__" and code.co_filename.startswith(f"{package / 'methods'}/"):
            arrived = True
        elif not code.co_name.startswith("<"):
            found[code] = None

    with tempfile.TemporaryDirectory() as name:
        recipe = Path(name) / "one.toml"
        recipe.write_text(RECIPE.format(method=method))
        before = sys.argv
        sys.argv = ["fozo", "bench", str(recipe), "--out", name, "--model", str(sample / "fashion-float32.onnx")]
        sys.argv += ["--imagenet", str(sample / "fashion-mnist.npz")]
        sys.setprofile(watch)
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
        finally:
            sys.setprofile(None)
            sys.argv = before
    assert arrived, "no method was ever called"
    return [
        f"{Path(code.co_filename).relative_to(package)}: {getattr(code, 'co_qualname', code.co_name)}" for code in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="align", help="what the tree calls fozo's own method")
    functions = entered(parser.parse_args().method)
    files = Counter(line.split(":")[0] for line in functions)
    print("\n".join(functions))
    print("\n".join(f"{count:4} {file}" for file, count in files.most_common()))
    print(f"{len(functions)} functions in {len(files)} files before the first batch")


if __name__ == "__main__":
    main()
