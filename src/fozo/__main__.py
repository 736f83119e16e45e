"""Where the ``fozo`` command begins (``python -m fozo`` too): signals first, imports later.

Importing takes a second, during which Ctrl-C would show a page of Python; so nothing but os, signal and sys is imported
here before that is seen to.
"""

import os
import signal
import sys
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main() -> None:
    """Run the command line as a program of its own: see :func:`fozo.cli.main`, which does the rest."""
    _open_standard_files()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores some
    _answer(heard, _leave)
    try:
        from fozo.cli import main as run
    except ImportError as error:
        print(f"fozo: cannot import what it needs ({error}); install it again", file=sys.stderr)
        sys.exit(70)
    sys.unraisablehook = _not_lost
    _say_warnings()
    try:
        _answer(heard, _stop)
        run()
    except KeyboardInterrupt as stop:  # in the moment before it is seen to there, or once more while that is done
        _leave(stop.args[0] if stop.args else signal.SIGINT, None)
    finally:
        _answer(heard, signal.SIG_DFL)  # all is done: from here on Python itself would show what it was doing


def _say_warnings() -> None:
    """Show fozo's own warnings as one sentence, without the line of Python that they came from."""
    import warnings

    from fozo.errors import ImageWarning, PluginWarning

    usual = warnings.showwarning

    def show(message: "Warning | str", category: "type[Warning]", *where: object, **more: object) -> None:
        if issubclass(category, (ImageWarning, PluginWarning)):
            print(f"fozo: {message}", file=sys.stderr)
        else:
            usual(message, category, *where, **more)  # type: ignore[arg-type]

    warnings.showwarning = show


def _open_standard_files() -> None:
    """Where the shell closed one (``fozo ... >&-``), keep its number from the next file that is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _answer(signals: list[signal.Signals], handler: object) -> None:
    for number in signals:
        signal.signal(number, handler)  # type: ignore[arg-type]


def _leave(number: int, _: FrameType | None) -> None:
    """End at once: while importing, nothing is to be tidied up, and what is imported might swallow an exception."""
    try:
        os.write(2, b"fozo: interrupted\n")
    finally:
        os._exit(128 + number)


def _stop(number: int, _: FrameType | None) -> None:
    """Unwind, so that whatever is being written is finished or removed. The exit code is told by the number."""
    raise KeyboardInterrupt(number)


def _not_lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """Where Python has to drop an interrupt (in a destructor, say), send it again a moment later."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    from threading import Timer

    Timer(0.05, os.kill, (os.getpid(), *unraisable.exc_value.args)).start()


if __name__ == "__main__":
    main()
