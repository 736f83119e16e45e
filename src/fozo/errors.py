"""The one exception fozo raises on purpose."""


class FozoError(ValueError):
    """Bad input, in one sentence: what was wrong, with which value, and what to do.

    The command line prints it and exits with code 2. Whatever raised it left files and
    adapters as they were.
    """
