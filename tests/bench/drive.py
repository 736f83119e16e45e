"""A process that the fault tests command: it imports torch once and forks a child for every run, to be killed.

``drive.py WEIGHTS PHOTOS`` reads lines ``{"out": FOLDER, "method": NAME, "limit": BYTES or null}``; for each it prints
the pid of the child that runs an experiment there, and when the child has ended, its exit status as ``os.wait`` gives
it.
"""

import json
import os
import resource
import sys
from pathlib import Path

import torch

from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths, Resources
from fozo.bench.run import run_experiment
from fozo.bench.store import Store
from fozo.engines.load import LoadOptions, load_engine
from fozo.errors import FozoError


def run(out: Path, method: str, limit: int | None) -> int:
    kinds = ("brightness", "contrast", "gaussian_noise", "pixelate")
    plan = StreamPlan(data="clean", kinds=kinds, severity=3, images=44, batch_size=1)
    experiment = Experiment("run", method, stream=plan, model=sys.argv[1], calibration=16)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    resources = Resources(Paths(imagenet=sys.argv[2]), LoadOptions(), out / "cache")
    try:
        run_experiment(experiment, resources, Store(out / "runs"), save_seconds=0.01)
    except FozoError as error:
        (out / "error.txt").write_text(str(error))
        return 2
    return 0


def main() -> None:
    torch.set_num_threads(1)
    load_engine(sys.argv[1])  # imports half of torch, which every child would do again
    for line in sys.stdin:
        task = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(run(Path(task["out"]), task["method"], task["limit"]))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
