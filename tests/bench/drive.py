"""A process that the fault tests command: it imports torch once and forks a child for every run, to be killed.

``drive.py WEIGHTS PHOTOS`` reads lines ``{"out": FOLDER, "limit": BYTES or null}``; for each it prints the pid of the
child that runs an experiment there, and when the child has ended, its exit status as ``os.wait`` gives it.
"""

import json
import os
import resource
import sys
from pathlib import Path

import torch

from fozo.bench.experiment import Experiment, StreamPlan
from fozo.bench.run import run_experiment
from fozo.bench.workshop import Places, Workshop
from fozo.engines.load import load_engine
from fozo.errors import FozoError


def run(out: Path, limit: int | None) -> int:
    kinds = ("brightness", "contrast", "gaussian_noise", "pixelate")
    plan = StreamPlan(data="imagenet", kinds=kinds, severity=3, images=44, batch_size=1)
    experiment = Experiment(sys.argv[1], "fozo", {"preset": "official"}, plan, calibration=16)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    out.mkdir(exist_ok=True)
    workshop = Workshop(Places(imagenet=sys.argv[2]), out / "shelf")
    try:
        run_experiment(experiment, workshop, out / "run", save_seconds=0.01)
    except FozoError as error:
        (out / "error.txt").write_text(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> None:
    torch.set_num_threads(1)
    load_engine(sys.argv[1])  # imports half of torch, which every child would do again
    for line in sys.stdin:
        task = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(run(Path(task["out"]), task["limit"]))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
