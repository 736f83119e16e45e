"""What commands share: options, how a model is loaded, how text becomes a value, and progress and tables."""

import inspect
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fozo.engines.load import LoadOptions, load_engine
from fozo.errors import FozoError, check_counts
from fozo.io import read_text
from fozo.types import Engine, Value

Model = Annotated[
    str, "Weights file, .onnx file, folder of transformers' save_pretrained, or timm:NAME with its full tag."
]
Clean = Annotated[Path, "Folder of clean images, with or without sub-folders."]
BatchSize = Annotated[int, "Images in a batch."]
Guard = Annotated[bool, "Use the plain model while adaptation hurts."]
Webhook = Annotated[list[str] | None, "Address that every event is sent to, as JSON; may be given often."]
Mqtt = Annotated[str | None, "Broker that every event is published at, for Home Assistant: mqtt://HOST."]
SecretFile = Annotated[Path | None, "File with the secret that webhooks are signed with."]
STATISTICS = "What fozo calibrate wrote."

LOADING: dict[str, tuple[type, str]] = {
    "architecture": (str, "Its timm name with tag, where its file is called otherwise."),
    "heads": (int, "Attention heads, where they are not width / 64."),
    "image_size": (int, "Run the model at another size."),
    "mean": (str, "Of the pixels, where unknown: 0.5, or 0.485,0.456,0.406."),
    "std": (str, "Standard deviation of the pixels, likewise."),
    "channels": (str, "Order of colours that a black box reads: rgb, or bgr."),
    "labels": (Path, "Text file with the name of a class in each line, in the order of the model's outputs."),
    "device": (str, "cpu, cuda, ..."),
    "dtype": (str, "Precision of a torch model: bfloat16, float16, float32, float64, or auto for the faster."),
    "threads": (int, "Processors to work on; all by default."),
    "runtime": (str, "Of an .onnx file: onnxruntime or openvino."),
    "scales": (Path, "What fozo quantise wrote, to run the model quantised."),
}
"""Fields of LoadOptions that a command line may set, and what they are for."""
DELAY = 2.0  # seconds of work before anything is drawn on a terminal
PAUSE = 30.0  # seconds between two plain lines where standard error is not a terminal


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Make of a function what typer takes for a command.

    Text in ``Annotated[type, text]`` is the help of an option, or of an argument where there is no default. A function
    that takes ``load: LoadOptions`` gets the options of :data:`LOADING` instead.
    """
    hints = get_type_hints(function, include_extras=True)
    loads = hints.pop("load", None) is not None

    def run(**values: Any) -> None:  # noqa: ANN401 - typer has checked them
        if loads:
            load = {name: values.pop(name) for name in LOADING}
            load |= {name: _channels(name, load[name]) for name in ("mean", "std") if load[name] is not None}
            if load["labels"] is not None:
                load["labels"] = tuple(read_text(load["labels"]).splitlines())
            values["load"] = LoadOptions(**load)
        function(**values)

    keywords = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "load":
            form = _annotation(name, hints[name], parameter.default is parameter.empty)
            keywords.append(parameter.replace(annotation=form, kind=parameter.KEYWORD_ONLY))
    for name, (kind, help) in LOADING.items() if loads else ():
        form = Annotated[kind | None, typer.Option(help=help, rich_help_panel="How the model is loaded")]
        keywords.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=form))
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]  # which is what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    return run


def _annotation(name: str, hint: Any, required: bool) -> Any:  # noqa: ANN401 - of any type
    help = hint.__metadata__[0] if get_origin(hint) is Annotated else None
    if not isinstance(help, str):  # typer's own
        return hint
    if required:
        return Annotated[hint.__origin__, typer.Argument(help=help)]
    names = ("--out", "-o") if name == "out" else ()
    return Annotated[hint.__origin__, typer.Option(*names, help=help)]


def command_line() -> str:
    return shlex.join(["fozo", *sys.argv[1:]]).encode(errors="backslashreplace").decode()


def load_model(model: str, load: LoadOptions) -> Engine:
    """Load a model for a command, which has the process to itself: ``--threads`` are PyTorch's too."""
    if load.threads is None or model.endswith(".onnx"):
        engine = load_engine(model, load)
    else:
        check_counts(threads=load.threads)
        engine = load_engine(model, replace(load, threads=None))
        sys.modules["torch"].set_num_threads(load.threads)
    if 0 in engine.spec.image_size:
        raise FozoError(f"{model} does not tell the size of its images; give --image-size")
    return engine


def _channels(name: str, text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise FozoError(
            f"--{name} is {text!r}; give one number, or one for each channel, such as 0.485,0.456,0.406"
        ) from error
    return values if len(values) > 1 else values[0]


def read_value(text: str) -> Value:
    """Read an option's value as TOML would: a truth value, a number, or else text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def read_options(assignments: list[str]) -> dict[str, Value]:
    options = {}
    for text in assignments:
        name, _, value = text.partition("=")
        if not value:
            raise FozoError(f"--option is {text!r}; give NAME=VALUE, such as schedule.decay=0.8")
        options[name] = read_value(value)
    return options


class Progress:
    """A bar on a terminal, once the work has lasted two seconds; elsewhere a plain line every half a minute.

    ``progress("calibrating", 64, 512)`` says what is done, how much of it, and how much there is, with the time left.
    """

    quiet = False  # whether nothing is shown (``fozo --quiet``)

    def __init__(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)
        self._began = self._said = self._since = time.monotonic()
        self._doing = ""
        self._before = 0
        self.done = 0
        self.total = 0

    def __call__(self, doing: str, done: int, total: int) -> None:
        self.done = done
        self.total = total
        now = time.monotonic()
        if self.quiet:
            return
        if not self._bar.console.is_terminal:
            if doing != self._doing:  # the first call counts what was done before it
                self._doing = doing
                self._since = now
                self._before = done
            if now - self._said >= PAUSE:
                self._said = now
                rate = (done - self._before) / (now - self._since) if now > self._since else 0.0
                left = f", {timedelta(seconds=round((total - done) / rate))} left" if rate > 0 else ""
                print(f"fozo: {doing}, {done} of {total}{left}", file=sys.stderr, flush=True)
            return
        (task,) = self._bar.tasks
        if total != task.total or done < task.completed:  # something else has begun
            self._bar.reset(self._task, total=total)
        self._bar.update(self._task, description=doing, completed=done)
        if not self._bar.live.is_started and now - self._began >= DELAY:
            self._bar.start()

    def close(self) -> None:
        """Take the bar off the screen, so that a line may be printed; the next call shows it again."""
        if self._bar.live.is_started:
            self._bar.stop()


def open_console() -> Console:
    """Standard output; in a pipe a row of a table is one line, whatever width the pipe claims to have."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def print_sentence(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)
