"""What a number was measured on: package versions, processor, threads; and how much memory was used."""

import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fozo.io.system import usable_cpus

PACKAGES = ("fozo", "numpy", "torch", "timm", "transformers", "onnxruntime", "openvino", "pillow", "scipy")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Environment:
    """The machine and its software."""

    packages: dict[str, str]  # versions of what matters, as far as it is installed
    python: str
    system: str
    processor: str
    cores: int  # processors that this process may use
    threads: int
    device: str


def environment(threads: int, device: str) -> Environment:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    if device.startswith("cuda"):
        import torch

        device = f"{device} ({torch.cuda.get_device_name(device)})"
    system = f"{platform.system()} {platform.machine()}"
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, platform.processor())
    return Environment(versions, platform.python_version(), system, processor, usable_cpus(), threads, device)


def forget_peak(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> int:
    """Peak of memory so far in bytes: the allocator's on CUDA, else the resident size of this process; 0 on Windows.

    Linux passes ru_maxrss on from the process that started this one; VmHWM is this process's alone.
    """
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:
        return 0
    scale = 1 if sys.platform == "darwin" else 1024
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
