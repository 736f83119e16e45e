"""``fozo`` whose streams save their states after every batch, for tests that kill it."""

from fozo import cli
from fozo.cli import folder_run, streams

adapt_camera = streams.adapt_camera


def adapt_often(stream: streams.Stream, setup: streams.Setup) -> streams.Camera:
    vars(folder_run)["SAVE_SECONDS"] = 0.0
    return adapt_camera(stream, setup)


if __name__ == "__main__":
    from tests.cli import archive

    streams.adapt_camera = archive.adapt_often
    cli.main()
