"""What the page costs the server: recording readings, and telling those who look. Processor time, of one thread.

python -m benchmarks.board
"""

from __future__ import annotations

import json
import time
import tracemalloc

from fozo.serve.history import POINTS, History, Reading, Viewer

CAMERAS, REPEATS = 64, 5


def reading(camera: int, number: int) -> Reading:
    """One that says something else each time."""
    drift, accuracy = 0.1 + number % 97 / 1000, 0.9 - number % 89 / 1000
    told = "no drift; expected accuracy 90% (85% to 94%)"
    facts = (drift, 0.31, False, False, accuracy, accuracy - 0.05, accuracy + 0.04, told)
    return Reading("model", f"camera {camera}", 1.7e9 + 5 * number, 16 * number, *facts)


def tell(history: History, viewer: Viewer) -> tuple[int, float]:
    """Tell a viewer all that is new: bytes, and the longest that the event loop stands still for a part."""
    length, longest = 0, 0.0
    while True:
        start = time.process_time()
        message = history.changes(viewer)
        if message is None:
            return length, longest
        length += len(json.dumps(message, separators=(",", ":")))
        longest = max(longest, time.process_time() - start)


def main() -> None:
    """Measure, and print the best of some repeats."""
    readings = [reading(camera, number) for number in range(POINTS) for camera in range(CAMERAS)]
    later = [reading(camera, POINTS) for camera in range(CAMERAS)]
    record, snapshot, change = [], [], []
    for _ in range(REPEATS):
        history, viewer = History(), Viewer()
        start = time.process_time()
        for each in readings:
            history.record(each)
        record.append(time.process_time() - start)
        snapshot.append(tell(history, viewer))
        for each in later:
            history.record(each)
        change.append(tell(history, viewer))
    tracemalloc.start()
    history = History()
    for each in readings:
        history.record(each)
    kept = tracemalloc.get_traced_memory()[0]
    print(f"{CAMERAS} cameras with {POINTS} points each")
    print(f"record a reading: {min(record) / len(readings) * 1e6:.1f} us")
    print(f"snapshot: {snapshot[0][0] / 1e3:.0f} kB, a part at most {min(each[1] for each in snapshot) * 1e3:.1f} ms")
    print(f"all changed: {change[0][0] / 1e3:.1f} kB, a part at most {min(each[1] for each in change) * 1e3:.1f} ms")
    print(f"memory: {kept / CAMERAS / 1e3:.0f} kB a camera")


if __name__ == "__main__":
    main()
