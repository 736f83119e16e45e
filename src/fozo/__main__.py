"""``python -m fozo`` is the ``fozo`` command."""

from fozo.cli import main

main()
