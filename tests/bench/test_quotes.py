"""Figures in prose come from records: a quote finds its place once, and records are read as they are printed."""

import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import pages, quotes, quotes_methods, quotes_service
from benchmarks.quotes import Quote, every, lines, number, printed, put_all, row, rows, words
from fozo.errors import FozoError
from tests.helpers import REPO

RECORD = """# Times

The server, 8 cameras:

| model | engine | ms |
|---|---|---:|
| small | a | 1.26 |
|  | b | 2,500.5 |

The loop took 12
to 35 µs, wrong answers: none.

| model | engine | ms |
|---|---|---:|
| small | a | +0.5 ± 0.1 |
"""
OVERHEAD = """Align over NoAdapt on 2 processors (x86_64), faded images

| tiny | threads | batch | processor time | clock | ms an image | rounds |
|---|---:|---:|---:|---:|---:|---:|
| torch | 1 | 1 | 1.121 | 1.122 | +2.871 | 157 |
| float32 | 1 | 64 | 1.163 | 1.164 | +1.949 | 4 |

torch, of one image: transform and description 0.71 ms, inverse 0.40 ms, taps and moves +0.300 ms, plain pass 20.10 ms
torch, batches of 64: peak memory 1.141x (492 and 431 MiB); the full state has 2.0 MB
float32, batches of 64: peak memory 1.293x (256 and 198 MiB); the full state has 2.0 MB

| bundled | threads | batch | processor time | clock | ms an image | rounds |
|---|---:|---:|---:|---:|---:|---:|
| torch | 1 | 8 | 1.413 | 1.413 | +0.220 | 200 |

torch, batches of 64: peak memory 1.031x (300 and 291 MiB); the full state has 0.4 MB
float32, batches of 64: peak memory 1.062x (120 and 113 MiB); the full state has 0.4 MB
"""
KILLED = """command               kills  differing  refused  litter  orphans
corrupt --workers 2     980          0        0       0        0
bench 20 times           20          1        0       2        0
bench, disk full          0          0        3       0        0
1000 kills in 3211 s
bench 20 times: differing: records.jsonl
"""
FUZZED = """state: 1000 inputs, 911 refused in 31 ways, 89 accepted, at most 4 MiB and 0.31 s, 25 s
journal: 1000 inputs, 500 refused in 9 ways, 500 accepted, at most 1 MiB and 0.76 s, 12 s
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records: one of each kind, and those of docs/safety.md and docs/cost.md."""
    found = {"r.md": RECORD, "overhead.md": OVERHEAD, "kill.md": KILLED, "fuzz.md": FUZZED}
    for name, text in found.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "log.xz").write_bytes(lzma.compress(b'0a {"n": 1}\nnot\n0b {"n": 2}\n'))
    for name in ("soak.log.xz", "settled.md"):
        (tmp_path / name).symlink_to(REPO / "results" / name)
    monkeypatch.setattr(quotes, "RECORDS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "after"),
    [
        ("b takes 9 ms, or +1.0 at most.", "b takes 2.5 ms, or -0.5 at most."),
        ("x\nb takes\n1.26 ms, or\n  none at most", "x\nb takes\n2.5 ms, or\n  -0.5 at most"),
    ],
)
def test_figures_are_put_into_their_places_whatever_the_lines(page: str, after: str) -> None:
    assert put_all("page.md", page, [Quote("b takes {:.1f} ms, or {:+.1f} at most", 2.5, -0.5)]) == after


@pytest.mark.parametrize(("page", "places"), [("It takes long.", 0), ("It takes 1 ms. It takes 2 ms.", 2)])
def test_a_quote_without_one_place_is_refused(page: str, places: int) -> None:
    with pytest.raises(
        FozoError, match=rf"^page\.md has {places} places instead of one for the quote 'takes {{}} ms'; "
    ):
        put_all("page.md", page, [Quote("takes {} ms", 3)])


def test_a_changed_record_makes_its_page_stale(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a table of the same page."""
    page = records / "page.md"
    page.write_text("<!-- table: t -->\nnew\n<!-- end -->\na takes 1.3\nms.", encoding="utf-8")

    def computed() -> dict[str, str]:
        text = pages.filled("page.md", page.read_text(encoding="utf-8"), {"t": "new"})
        own = Quote("a takes {:.1f} ms", number(row("r.md", "8 cameras", "small", "a")["ms"]))
        return {"page.md": put_all("page.md", text, [own])}

    monkeypatch.setattr(pages, "ROOT", records)
    monkeypatch.setattr(pages, "computed", computed)
    assert pages.stale() == []
    (records / "r.md").write_text(RECORD.replace("1.26", "7"), encoding="utf-8")
    assert pages.stale() == ["page.md"]
    assert computed()["page.md"].endswith("a takes 7.0\nms.")


def test_records_are_read_as_they_are_printed(records: Path) -> None:
    assert [each["ms"] for each in rows("r.md", "| engine |")] == ["1.26", "2,500.5", "+0.5 ± 0.1"]
    assert number(row("r.md", "8 cameras", "small", "b")["ms"]) == 2500.5  # the model is that of the row above
    assert printed("r.md", r"took (\d+) to (\d+) µs") == [12, 35]
    assert words("r.md", r"wrong answers: (\w+)") == ["none"]
    assert every("fuzz.md", r"^\w+: (\d+) inputs, (\d+)") == [[1000, 911], [1000, 500]]
    assert lines("log.xz") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda: rows("none.md", "x"), "there is no record results/none.md; results/README.md says which command"),
        (lambda: row("r.md", "8 cameras", "large"), "results/r.md has no row 'large' in a table of '8 cameras'"),
        (
            lambda: row("r.md", "| engine |", "small", "a"),
            "results/r.md has 2 rows 'small | a' in tables of '| engine |'",
        ),
        (lambda: printed("r.md", r"(\d+) \|"), "times instead of once"),
        (lambda: every("r.md", "^nothing"), "results/r.md has no line with '^nothing'"),
        (lambda: number("none"), "there is no number in 'none'"),
    ],
)
def test_a_record_without_the_figure_is_refused(records: Path, read: Callable[[], object], sentence: str) -> None:
    with pytest.raises(FozoError, match=re.escape(sentence)):
        read()


def test_what_kills_and_fuzzing_print_is_quoted(records: Path) -> None:
    fuzzed, killed, *_ = quotes_service.safety()
    assert fuzzed.figures == ["2", "2,000", "4", "0.8"]
    assert killed.figures == ["2", "1000", "1", "3", "2", "0"]


def test_what_the_overhead_prints_is_a_table_and_quotes(records: Path) -> None:
    assert quotes_methods.overhead_table().splitlines()[2:] == [
        "| ViT-Tiny | torch | 1 | 1.121 | 1.122 | +2.9 | 157 |",
        "| ViT-Tiny | ONNX Runtime, float32 | 64 | 1.163 | 1.164 | +1.9 | 4 |",
        "| bundled, 28 px | torch | 8 | 1.413 | 1.413 | +0.2 | 200 |",
    ]
    peaks, _, states, *_ = quotes_methods.cost()
    assert peaks.figures == ["1.141", "492", "431", "1.293", "256", "198", "1.031", "1.062"]
    assert states.figures == ["2.0", "0.4"]
    (records / "overhead.md").write_text(OVERHEAD.partition("| bundled")[0], encoding="utf-8")
    with pytest.raises(FozoError, match=r"results/overhead\.md has 2 lines on memory instead of 4"):
        quotes_methods.cost()
