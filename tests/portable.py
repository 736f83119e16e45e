"""Print the test files that need neither PyTorch nor fixtures nor benchmarks: what every system can run.

python -m pytest --noconftest $(python -m tests.portable)
"""

import re
from pathlib import Path

NEEDS_MORE = re.compile(r"torch|tests\.(?!refusals)\w|benchmarks|weights: Path")


def portable(folder: Path = Path("tests")) -> list[str]:
    files = sorted(folder.rglob("test_*.py"))
    return [file.as_posix() for file in files if not NEEDS_MORE.search(file.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    print(*portable())
