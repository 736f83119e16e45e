"""The film of ``fozo demo`` on a page: a timeline with the monitor's events, pictures, and what came of each scene."""

from __future__ import annotations

from html import escape

from fozo.bench.report.charts import Series, Span, line_chart
from fozo.bench.report.colours import COLOURS
from fozo.bench.report.pictures import picture
from fozo.bench.report.tables import full_name
from fozo.cli.demo_camera import LATEST, SEVERITY, Film, Picture, Scene, summary
from fozo.monitor import Event

PLAIN, ALIGN = list(COLOURS).index("NoAdapt"), list(COLOURS).index("Align")
EXPECTED = len(COLOURS)
CELLS = ("plain", "adapted", "expected", "noticed after", "images")
SHOWN = 3
"""Images of each scene: the last of its last batches, whatever became of them."""


def film_sections(film: Film) -> str:
    """Make the sections."""
    return (
        f'<section><h2>A camera goes bad</h2><p class="conclusion">{escape(summary(film))}</p>'
        f'<div class="charts wide">{timeline(film)}</div>{events(film)}</section>'
        f"<section><h2>Scene by scene</h2>{scenes(film)}</section>"
        f"<section><h2>What the camera saw, and what the model read</h2><p class=note>The last images of the last "
        f"batches of each scene: as they were, as the camera saw them, and after Align's equaliser. Below: what each "
        f"is, and what the plain and the adapted model took it for.</p>{pictures(film)}</section>"
    )


def timeline(film: Film) -> str:
    """Draw the accuracies, true and expected, with the scenes' names below and the events' numbers above."""
    x = [frame.images for frame in film.frames]
    count = range(len(film.frames))
    read = [(frame.images, frame.status.accuracy) for frame in film.frames]
    known = [(place, estimate) for place, estimate in read if estimate is not None]
    series = [
        Series(
            "expected by the monitor, with its 95 % interval", [place for place, _ in known],
            [100 * e.value for _, e in known], EXPECTED, dashed=True,
            low=[100 * e.low for _, e in known], high=[100 * e.high for _, e in known],
        ),
        Series("plain model", x, [film.live("plain", i) for i in count], PLAIN),
        Series("adapted (Align)", x, [film.live("adapted", i) for i in count], ALIGN),
    ]  # fmt: skip
    spans = [Span(s.first - 1, s.first - 1 + s.images, full_name(s.domain)) for s in film.scenes]
    told = [(event.image, str(number)) for number, (event, _) in enumerate(_events(film), 1)]
    title = f"Accuracy of the latest {LATEST} images, and what the monitor expects it to be without labels"
    return line_chart(title, series, "", "accuracy (%)", spans=spans, events=told)


def _events(film: Film) -> list[tuple[Event, int]]:
    """All events, each with the number of images after which it was told."""
    return [(event, frame.images) for frame in film.frames for event in frame.events]


def events(film: Film) -> str:
    """List what the monitor told."""
    rows = "".join(
        f'<tr><th scope="row">{number}</th><td>{told:,}</td><td>{escape(event.name)}</td>'
        f"<td>{escape(event.text)}</td></tr>"
        for number, (event, told) in enumerate(_events(film), 1)
    )
    if not rows:
        return "<p>The monitor told nothing.</p>"
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "after image", "event", "what the monitor said"))
    return f'<div class="scroll events"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def scenes(film: Film) -> str:
    """Put true and expected accuracies side by side."""
    head = "".join(f'<th scope="col">{name}</th>' for name in CELLS)
    rows = "".join(
        f'<tr><th scope="row">{escape(full_name(scene.domain))}</th>'
        + "".join(f"<td>{text}</td>" for text in scene_cells(scene))
        + "</tr>"
        for scene in film.scenes
    )
    table = f'<table class="narrow"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    hint = (
        f"Accuracies in percent, corruptions of severity {SEVERITY}. Expected: by the monitor, without labels, of what "
        f"the adapted model predicts. Noticed: after so many images of the scene."
    )
    return f'<div class="scroll">{table}</div><p class="hint">{hint}</p>'


def scene_cells(scene: Scene) -> tuple[str, ...]:
    """What a table says of a scene, under :data:`CELLS`."""
    found = scene.windows
    expected = f"{100 * sum(e.value for e, _ in found) / len(found):.1f}" if found else "-"
    delay = "-" if scene.noticed is None else f"{scene.noticed[0]}"
    return f"{scene.share('plain'):.1f}", f"{scene.share('adapted'):.1f}", expected, delay, str(scene.images)


def pictures(film: Film) -> str:
    """Show images of each scene."""
    shown = ""
    for scene in film.scenes:
        few = "".join(_triple(frame.picture) for frame in scene.frames[-SHOWN:])
        shown += f'<h3>{escape(full_name(scene.domain))}</h3><div class="triples">{few}</div>'
    return shown


def _triple(one: Picture) -> str:
    said = "".join(
        f'<span class="{"good" if name == one.truth else "bad"}">{who}: {escape(name)}</span>'
        for who, name in (("plain", one.plain), ("adapted", one.adapted))
    )
    images = "".join(
        picture(pixels, f"{one.truth}, {how}", exact=True)
        for pixels, how in ((one.clean, "as it was"), (one.camera, "as the camera saw it"), (one.read, "as read"))
    )
    return f"<figure>{images}<figcaption><b>{escape(one.truth)}</b>{said}</figcaption></figure>"
