"""The ``fozo`` command. However it ends, it says so in one sentence and by its exit code."""

import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress
from signal import SIGINT
from typing import Annotated

import typer

from fozo.cli import adapt, adopt, bench, data, demo, feed, models, serve, watch
from fozo.cli.options import Progress, as_command
from fozo.errors import RENAMED, FozoError, ImageWarning, ModelWarning, PluginWarning
from fozo.io.system import installed_version

WRONG = 2
BROKEN = 70
UNREAD = 128 + 13  # SIGPIPE, which Windows has no name for
TRACEBACK = "FOZO_TRACEBACK"  # set this variable of the environment to see where an error came from
COMPLETE = "_FOZO_COMPLETE"  # what a shell sets when Tab is pressed: see ``fozo --install-completion``
CODES = (
    f"Exit codes: 0, done; {WRONG}, something given cannot be used or a file cannot be written, as one sentence says; "
    f"{BROKEN}, a fault of fozo itself ({TRACEBACK}=1 shows where); 128 + n, ended by signal n: 130 by Ctrl-C, 143 by "
    f"kill, 141 because the reader of the output is gone."
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, epilog=CODES)
for _command in (
    demo.demo, bench.bench, bench.report, models.calibrate, models.quantise, adapt.adapt, watch.watch,
    serve.serve, feed.feed, models.methods, data.corrupt, models.export, adopt.adopt, adopt.model,
):  # fmt: skip
    app.command()(as_command(_command))
sets = typer.Typer(help="Look at image sets.", no_args_is_help=True)
sets.command()(as_command(data.check))
app.add_typer(sets, name="data")


@app.callback(invoke_without_command=True)
def fozo(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say how far a command is.")] = False,
) -> None:
    """Keep a deployed vision model accurate while its images drift, with forward passes only."""
    if version:
        typer.echo(installed_version())
        raise typer.Exit
    Progress.quiet = quiet


def main() -> None:
    """Run the command line and exit; a traceback is printed only on request."""
    warnings.formatwarning = format_warning
    models_log = logging.getLogger("fozo.models")
    models_log.setLevel(logging.INFO)
    models_log.handlers = [Lines()]
    for stream in (sys.stdout, sys.stderr):  # None where the shell closed them
        if hasattr(stream, "reconfigure"):  # what an old locale has no letters for must not end the work
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        if COMPLETE in os.environ:  # a shell asks what could come next; typer answers and exits
            command.main(prog_name="fozo")
        # Not app(), which has exit codes of its own for interrupts and closed pipes.
        with command.make_context("fozo", sys.argv[1:]) as context:
            command.invoke(context)
        code = 0
    except BaseException as error:
        code = explain(error)
    try:
        print(end="", flush=True)
    except OSError as error:
        code = code or explain(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again when it ends
    sys.exit(code)


class Lines(logging.Handler):
    """Prints each line of a log once."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.printed:
            self.printed.add(line)
            print(f"fozo: {line}", file=sys.stderr)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Write fozo's own warnings as one sentence, without the line of Python that they came from."""
    if issubclass(category, (ImageWarning, ModelWarning, PluginWarning)):
        return f"fozo: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def explain(error: BaseException) -> int:
    """Say in one sentence what ended the command, and give the exit code for it."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    chain: BaseException | None = error
    while chain is not None:  # an import that Ctrl-C breaks off may call itself failed
        if isinstance(chain, KeyboardInterrupt):
            return _say("interrupted", 128 + (chain.args[0] if chain.args else SIGINT))
        if isinstance(chain, BrokenPipeError) and not isinstance(error, FozoError):  # rich makes it a SystemExit
            return UNREAD
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, SystemExit) and not isinstance(error.code, str):  # typer's own end of completion
        return int(error.code or 0)
    if isinstance(error, FozoError):
        return _say(str(error), WRONG)
    if hasattr(error, "format_message"):  # typer's own errors, whose class has no public name
        message = error.format_message().rstrip(".")
        if not message:  # where a command lacks everything, typer has shown the help and has nothing to say
            return WRONG
        option = getattr(error, "option_name", "").removeprefix("--")
        if option in RENAMED:
            message = f"--{option} is called --{RENAMED[option]} now"
        context = getattr(error, "ctx", None)
        return _say(f"{message}; see {context.command_path if context else 'fozo'} --help", WRONG)
    if isinstance(error, OSError):
        where = "the output" if error.filename is None else os.fsdecode(error.filename)
        return _say(f"cannot use {where}: {error.strerror or error}; check the path, its permissions and space", WRONG)
    if isinstance(error, MemoryError):
        return _say(f"not enough memory ({error}); give smaller images, smaller batches or fewer workers", WRONG)
    name = f"{type(error).__name__}: {error}".partition("\n")[0]
    return _say(f"a fault of fozo itself ({name}); set {TRACEBACK}=1 to see where, and please report it", BROKEN)


def _say(sentence: str, code: int) -> int:
    with suppress(OSError):  # standard error may be full or closed as well
        print(f"fozo: {sentence}", file=sys.stderr, flush=True)
    return code
