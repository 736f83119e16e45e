"""Where the ``fozo`` command begins (``python -m fozo`` too): signals and closed standard files first, then imports."""

import os
import signal
import sys

STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed by the shell (``>&-``): keep its number from the next file that is opened
            os.open(os.devnull, os.O_RDWR)
    heard = [stop for stop in STOPS if signal.getsignal(stop) is not signal.SIG_IGN]  # nohup ignores some
    for stop in heard:
        signal.signal(stop, leave)  # while importing there is nothing to tidy up
    try:
        from fozo.cli import main as run
    except ImportError as error:
        print(f"fozo: cannot import what it needs ({error}); install it again", file=sys.stderr)
        sys.exit(70)
    for stop in heard:
        signal.signal(stop, interrupt)
    try:
        run()
    finally:  # all is done: from here on Python would print a traceback
        for stop in heard:
            signal.signal(stop, leave)


def leave(number: int, _: object) -> None:
    os.write(2, b"fozo: interrupted\n")
    os._exit(128 + number)


class Stopped(KeyboardInterrupt):
    """A signal. Of KeyboardInterrupt itself Python remembers that exec() raised it, and ends by SIGINT at the end."""


def interrupt(number: int, _: object) -> None:
    """Unwind, so that files are finished or removed; a second signal ends at once."""
    signal.signal(number, leave)
    raise Stopped(number)


if __name__ == "__main__":
    main()
