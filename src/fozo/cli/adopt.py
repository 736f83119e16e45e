"""``fozo model``, which says what was found in a model, and ``fozo adopt``, which keeps the tokens of an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import Model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError


def model(
    model: Model,
    load: LoadOptions,
) -> None:
    """Say what was found in a model: its tokens, its normalisation, the methods it serves, and what is given up."""
    from fozo.methods.common.description import describe_model

    print(describe_model(model, load))


def adopt(
    model: Annotated[Path, "An .onnx file of any program."],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file to write.", show_default=False)],
    image_size: Annotated[int | None, "Where the file does not state the size of its images."] = None,
    channels: Annotated[str, "Order of colours that it reads: rgb, or bgr."] = "rgb",
) -> None:
    """Find a transformer's tokens in an .onnx file of any program, and write a file that Align moves them in.

    The new file needs neither PyTorch nor the onnx package.
    """
    from fozo.engines.load import adopted
    from fozo.engines.tokens import NoTokensError
    from fozo.io import check_output

    if channels not in ("rgb", "bgr"):
        raise FozoError(f"--channels is {channels!r}; give rgb or bgr")
    check_output(out)
    if out.suffix != ".onnx":
        raise FozoError(f"the file to write must end in .onnx, not {out.name!r}; engines are chosen by that ending")
    try:
        graph = adopted(model, LoadOptions(image_size=image_size, channels=channels))
    except NoTokensError as error:
        raise FozoError(
            f"{model} stays a black box, because {error}; give the original weights, or another export"
        ) from error
    graph.write(out)
    spec = graph.spec
    prompts = "takes prompts" if graph.prompts() else "takes no prompts, because its number of tokens is fixed"
    print(f"{out}: {spec.name}, {spec.depth} blocks of {spec.patches} patches, {spec.classes} classes; {prompts}")
