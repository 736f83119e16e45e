"""The bundled sample: a small ViT, in float32 and INT8, its source statistics, and 2000 real images to stream.

Beside the float32 model lies what a monitor of ``fozo.Align`` compares with: measured on 512 other test images.

The images are from the test set of Fashion-MNIST (Zalando SE, MIT, see LICENSE beside this file): the first 200 of each
of the ten classes, gray, 28 x 28 pixels. The model was trained by ``training/train.py`` on the training set alone, and
all files here were written by ``training/pack.py``.
"""

from pathlib import Path

from fozo.core.statistics import Statistics

FOLDER = Path(__file__).parent
IMAGES = FOLDER / "fashion-mnist.npz"  # what ``open_images`` takes
MODELS = {"float32": FOLDER / "fashion-float32.onnx", "INT8": FOLDER / "fashion-int8.onnx"}
"""What ``load_engine`` takes. The INT8 file is a model of its own, with its own statistics."""
MONITOR = MODELS["float32"].with_suffix(".monitor.safetensors")
"""What ``Reference.load`` takes: of Align on the float32 model; no image is in it."""


def statistics(model: Path) -> Statistics:
    """Statistics of one of :data:`MODELS` over clean images of the training set."""
    return Statistics.load(model.with_suffix(".statistics.safetensors"))
