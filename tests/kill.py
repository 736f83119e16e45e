"""Kill commands by SIGKILL at random moments, give them again, and compare with what an undisturbed command leaves.

    python tests/kill.py --kills 1000 [--seed 0] [--only bench]
    python tests/kill.py --every [--only adapt]

For each command in turn a new folder is made, the command is started in it, killed one to three times and then left to
finish. Two kills of five wait for the next temporary file to be written, where most could go wrong. One run of ``fozo
bench`` is killed 20 times, each time a few batches further on; another meets a full disk. With ``--every`` a command is
killed before its first file operation, its second, and so on, where random moments seldom are. Counted are results that
differ from the undisturbed ones, continuations that were refused, files left behind that an undisturbed command does
not leave, other than temporary files younger than an hour, and processes left behind. The exit code is 0 if all of
these are zero. Commands run in children of one process that has imported everything once.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

RECIPE = """
calibration = 16
[stream]
kinds = ["brightness", "contrast"]
severity = 3
images = {images}
batch_size = {batch}
[[row]]
label = "Align"
method = "align"
"""
MODEL, MADE = "{sample}/fashion-float32.onnx", "../prepared"
BENCH = ("--model", MODEL, "--data", "imagenet={sample}/fashion-mnist.npz", "--threads", "1", "--out", "out")
ADAPT = ("adapt", MODEL, f"{MADE}/photos", "--statistics", f"{MADE}/statistics.safetensors", "--batch-size", "4")
CORRUPT = ("corrupt", f"{MADE}/photos", "out", "--kinds", "brightness,contrast,gaussian_noise", "--size", "32")
EXPORT = ("export", f"{MADE}/vit_tiny_patch8_32.augreg_random.safetensors", "-o", "model.onnx")
COMMANDS: dict[str, tuple[str, ...]] = {
    "corrupt": (*CORRUPT, "--severity", "1,5", "--workers", "1"),
    "corrupt --workers 2": (*CORRUPT, "--severity", "1-5", "--workers", "2"),
    "adapt": (*ADAPT, "-o", "predictions.csv"),
    "adapt --resume": (*ADAPT, "--state", "camera.state", "--resume", "-o", "predictions.csv"),
    "journal": (*ADAPT, "--method", "fozo", "--option", "journal=journal.log", "-o", "predictions.csv"),
    "calibrate": ("calibrate", MODEL, f"{MADE}/photos", "--batch-size", "4", "-o", "statistics.safetensors"),
    "export": EXPORT,
    "export --int8": (*EXPORT, "--int8", "dynamic"),
    "bench": ("bench", f"{MADE}/mine.toml", *BENCH),
    "bench --workers 2": ("bench", f"{MADE}/more.toml", *BENCH, "--seeds", "0,1", "--workers", "2"),
    "report": ("report", f"{MADE}/out", "-o", "report.html"),
}
SINGLE = ("bench", f"{MADE}/single.toml", *BENCH)  # batches of one image, for faults between two of them
OFTEN, FULL, KILLS = "bench 20 times", "bench, disk full", 20
LIMIT = 20_000  # bytes of a file on a full disk: some batches' records
OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Events of Python that change files, beside those that open one to write."""
FOREIGN = "tmp/ort.quant."  # what ONNX Runtime's quantizer leaves of a killed process in the system's folder for such
TIMES = ("costs.jsonl", "conditions.json")
"""Files that say how long something took; like folders and other programs' temporary files they count by name only."""


FAULTS = ("differing", "refused", "litter", "orphans")


@dataclass
class Count:
    """What became of one command."""

    kills: int = 0
    differing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        return [f"{what}: {each}" for what in FAULTS for each in dict.fromkeys(getattr(self, what))]


def kill_before(operation: int) -> None:
    """Have this process killed before its file operation of this number, counted from 1."""
    left = operation

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        flags = arguments[2] if event == "open" else 0
        if event in OPERATIONS or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def start(command: Iterable[str], folder: Path, limit: int = resource.RLIM_INFINITY, operation: int = 0) -> int:
    """Run ``fozo ...`` in a child with ``folder`` to itself and a session of its own; return its pid.

    No file that it writes may have more than ``limit`` bytes. If given, it is killed before that file ``operation``.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        from fozo.__main__ import main
        from fozo.data import sample

        if operation:
            kill_before(operation)
        sys.argv = ["fozo", *(part.format(sample=sample.FOLDER) for part in command)]
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 70
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def let_run(pid: int, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
    """Wait for so long, until it is ``enough``, or until the child has ended, which is not yet waited for then."""
    last = time.monotonic() + seconds
    while time.monotonic() < last and not enough():
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.0005)


def run(command: Iterable[str], folder: Path) -> None:
    """Run a command undisturbed."""
    code = wait(start(command, folder))
    assert code == 0, (folder / "said.txt").read_text()


def prepare(folder: Path) -> None:
    """Make what commands read: images, weights, statistics, recipes, and results to report."""
    import numpy as np
    from PIL import Image
    from safetensors.numpy import save_file

    from fozo.data import sample
    from fozo.models.vit import Architecture, ViT

    folder.mkdir()
    small = Architecture((32, 32), (8, 8), channels=3, dim=64, depth=3, heads=1, hidden=64, classes=6)
    values = np.random.default_rng(0)
    shapes = {name: tuple(tensor.shape) for name, tensor in ViT(small).state_dict().items()}
    weights = {name: values.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "vit_tiny_patch8_32.augreg_random.safetensors")
    with np.load(sample.IMAGES) as archive:
        for number, pixels in enumerate(archive["images"][:24]):
            path = folder / "photos" / str(number % 3) / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).convert("RGB").save(path)
    for name, images, batch in (("mine", 40, 4), ("more", 160, 4), ("single", 88, 1)):
        (folder / f"{name}.toml").write_text(RECIPE.format(images=images, batch=batch))
    shutil.copy(sample.MODELS["float32"].with_suffix(".statistics.safetensors"), folder / "statistics.safetensors")
    run(("bench", "mine.toml", *BENCH), folder)


def results(folder: Path) -> dict[str, bytes]:
    """All that lies below a folder, by name, with what should be equal to the undisturbed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path == folder / "said.txt":
            continue
        strange = path.name in TIMES or path.is_dir() or path.is_relative_to(folder / "tmp")
        content = b"" if strange else path.read_bytes()
        if path.name == "journal.log":  # says that it went back; what it leads to is what counts
            from fozo.methods.fozo import replay_prompts

            content = replay_prompts(path).tobytes()
        found[path.relative_to(folder).as_posix()] = content
    return found


def left_running(sessions: Iterable[int]) -> list[str]:
    """Processes that still belong to killed commands, given a minute to be gone on a busy machine."""
    deadline, wanted = time.monotonic() + 60, {str(session) for session in sessions}
    while True:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().rpartition(")")
            except OSError:
                continue
            state, _, _, session = rest.split()[:4]
            if session in wanted and state != "Z":
                found.append(name.partition("(")[2])
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def recorded(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("records.jsonl"))


def torment(
    command: tuple[str, ...], folder: Path, whole: dict[str, bytes], times: int, moment: Callable[[int], None]
) -> Count:
    """Kill a command some times in one folder, each time when ``moment`` has come, and let it finish."""
    count, sessions = Count(), []
    folder.mkdir()
    for _ in range(times):
        pid = start(command, folder)
        sessions.append(pid)
        moment(pid)
        os.kill(pid, signal.SIGKILL)  # of a child that has ended this does nothing, as nobody has waited for it yet
        code = wait(pid)
        count.kills += code == -signal.SIGKILL
        if code > 0:
            count.refused.append((folder / "said.txt").read_text().strip())
    finish(command, folder, whole, count)
    count.orphans += left_running(sessions)
    return count


def finish(command: tuple[str, ...], folder: Path, whole: dict[str, bytes], count: Count) -> None:
    """Let a command finish, and look at what it left."""
    code = wait(start(command, folder))
    if code:
        count.refused.append(f"exit code {code}: {(folder / 'said.txt').read_text().strip()}")
        return
    found = results(folder)
    count.differing += [name for name in whole if found.get(name) != whole[name] and not name.startswith("tmp/")]
    # Temporary files stay until they are an hour old, but in a folder of runs, which is locked.
    recent = {name for name in found if ".fozo.part" in name and command[0] != "bench"}
    count.litter += [
        name for name in found if name not in whole and name not in recent and not name.startswith(FOREIGN)
    ]


def fill_disk(command: tuple[str, ...], folder: Path, whole: dict[str, bytes]) -> Count:
    """Let a run's files reach their limit: it ends with one sentence, leaves whole records, and can go on."""
    count = Count()
    for name in (name for name in whole if "/calibration/" in name):  # which is larger than the limit
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(whole[name])
    code, said = wait(start(command, folder, LIMIT)), (folder / "said.txt").read_text().strip()
    # Where the limit cuts a line in two, the system writes the first half and reports no error of its own.
    told = "cannot write" in said and ("File too large" in said or "no space left" in said) and "\n" not in said
    if code != 2 or not told or not recorded(folder) or any(folder.rglob("result.json")):
        count.refused.append(f"exit code {code} after {recorded(folder)} records: {said}")
    torn = [path for path in folder.rglob("records.jsonl") if not path.read_bytes().endswith(b"\n")]
    count.litter += [path.name for path in (*folder.rglob("*.part"), *torn)]
    finish(command, folder, whole, count)
    return count


def kill_at_every(command: tuple[str, ...], folder: Path, whole: dict[str, bytes]) -> Count:
    """Kill a command before each of its file operations in turn, and let it finish each time."""
    count = Count()
    while True:
        folder.mkdir()
        pid = start(command, folder, operation=count.kills + 1)
        if wait(pid) != -signal.SIGKILL:
            return count
        count.kills += 1
        finish(command, folder, whole, count)
        count.orphans += left_running([pid])
        shutil.rmtree(folder)


def kill(kills: int, seed: int, only: str, every: bool) -> dict[str, Count]:
    """Kill the commands in turn, at every operation, or each once and then a few times until there were enough."""
    draw = random.Random(seed)
    chosen = {name: command for name, command in COMMANDS.items() if name.startswith(only)}
    counts: dict[str, Count] = {}
    with tempfile.TemporaryDirectory(prefix="fozo-kill-") as name:
        root, trial = Path(name), Path(name) / "trial"
        prepare(root / "prepared")

        def undisturbed(command: tuple[str, ...]) -> tuple[dict[str, bytes], float]:
            trial.mkdir()
            began = time.monotonic()
            run(command, trial)
            seconds, found = time.monotonic() - began, results(trial)
            shutil.rmtree(trial)
            return found, seconds

        def add(label: str, one: Count) -> None:
            total = counts.setdefault(label, Count())
            total.kills += one.kills
            for what in FAULTS:
                getattr(total, what).extend(getattr(one, what))
            shutil.rmtree(trial)

        def any_moment(pid: int, seconds: float) -> None:
            let_run(pid, draw.uniform(0, seconds))
            let_run(pid, draw.choice((0, 0, 0, seconds / 3, seconds / 3)), lambda: any(trial.rglob("*.part")))

        def some_records_later(pid: int) -> None:
            goal = recorded(trial) + draw.randrange(6)
            let_run(pid, 30, lambda: recorded(trial) >= goal)
            let_run(pid, draw.uniform(0, 0.005))

        for label, command in chosen.items() if every else ():
            add(label, kill_at_every(command, trial, undisturbed(command)[0]))
        wholes: dict[str, tuple[dict[str, bytes], float]] = {}
        while not every and sum(each.kills for each in counts.values()) < kills:
            for label, command in chosen.items():
                times = draw.choice((1, 1, 2, 3)) if label in wholes else 1
                if label not in wholes:
                    wholes[label] = undisturbed(command)
                whole, seconds = wholes[label]
                one = torment(command, trial, whole, times, partial(any_moment, seconds=seconds))
                if not one.kills:  # it was timed on a busier machine
                    wholes[label] = whole, 0.7 * seconds
                add(label, one)
        if OFTEN.startswith(only) and not every:
            whole, _ = undisturbed(SINGLE)
            add(OFTEN, torment(SINGLE, trial, whole, KILLS, some_records_later))
            add(FULL, fill_disk(SINGLE, trial, whole))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands whose name begins so")
    parser.add_argument("--every", action="store_true", help="kill at every file operation, once")
    options = parser.parse_args()
    for module in ("fozo.cli", "fozo.bench.run", "onnxruntime.quantization", "torch", "onnx"):
        __import__(module)  # once, before the children are forked
    from fozo.bench.run import run_experiment

    assert run_experiment.__kwdefaults__ is not None
    run_experiment.__kwdefaults__["save_seconds"] = 0.01  # so that runs of a second have states to go on from
    began = time.monotonic()
    counts = kill(options.kills, options.seed, options.only, options.every)
    rows = [(label, each.kills, *(len(getattr(each, what)) for what in FAULTS)) for label, each in counts.items()]
    for row in (("command", "kills", *FAULTS), *rows):
        print("{:20}{:>7}{:>11}{:>9}{:>8}{:>9}".format(*row))
    print(f"{sum(each.kills for each in counts.values())} kills in {time.monotonic() - began:.0f} s")
    for label, each in counts.items():  # last, where an excerpt of a long log still has them
        for fault in each.faults():
            print(f"{label}: {fault}")
    sys.exit(any(each.faults() for each in counts.values()))


if __name__ == "__main__":
    main()
