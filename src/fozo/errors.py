"""The one exception fozo raises on purpose, and the warnings."""


class FozoError(ValueError):
    """Bad input, in one sentence: what was wrong, with which value, and what to do.

    The command line prints it and exits with code 2. Whatever raised it left files and
    adapters as they were.
    """


class ImageWarning(UserWarning):
    """Images that can be read, but were probably not meant so; said once by an engine for each likely cause.

    ``warnings.simplefilter("error", fozo.errors.ImageWarning)`` has them refused.
    """


class PluginWarning(UserWarning):
    """A method of another package that cannot be loaded, and is left out of a list."""
