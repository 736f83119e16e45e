"""The one exception fozo raises on purpose, and the warnings."""


class FozoError(ValueError):
    """Bad input, in one sentence: what was wrong, with which value, and what to do.

    The command line prints it and exits with code 2. Whatever raised it left files and
    adapters as they were.

    Examples:
        >>> try:
        ...     fozo.NoAdapt(model)(batch[:, :, :20])
        ... except fozo.FozoError as error:
        ...     print(error)
        vit-fashion reads float images of shape [B, 1, 28, 28], but the batch has shape [8, 1, 20, 28]; resize ...
    """


RENAMED = {
    "stats": "statistics", "source": "statistics", "monitor": "reference", "SourceStatistics": "Statistics",
    "MonitorReference": "Reference",
}  # fmt: skip
"""Names of fozo 0.2 that were given up, for the errors that name the new ones."""


def check_counts(**counts: int) -> None:
    """Refuse numbers below one."""
    for name, count in counts.items():
        if count < 1:
            raise FozoError(f"{name} is {count}; give a whole number from 1 up")


class ImageWarning(UserWarning):
    """Images that can be read, but were probably not meant so; said once by an engine for each likely cause.

    Examples:
        >>> warnings.simplefilter("error", ImageWarning)  # refuses them
        >>> fozo.NoAdapt(model)((batch - 0.286) / 0.353)
        Traceback (most recent call last):
        fozo.errors.ImageWarning: image 0 of the batch holds values of ..., where vit-fashion reads ...: it was ...
    """


class ModelWarning(UserWarning):
    """A transformer whose tokens cannot be used, so that only its images are restored."""


class PluginWarning(UserWarning):
    """A method of another package that cannot be loaded, and is left out of a list."""
