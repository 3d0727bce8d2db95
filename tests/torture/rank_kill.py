"""In a process of torchrun or of a cluster: SIGKILL for a rank at the moment that a plan names.

A `sitecustomize` file imports this one when such a process starts. The plan has one moment for each
attempt of the job, so a restarted rank is killed at another moment, or not at all.
"""

import json
import os
import signal
import threading
from pathlib import Path

from tests.torture.processes import count_operations

PLACE = "TORTURE_RANKS"  # environment variable: the folder of the plan
PLAN, KILLED, COUNTED = "plan.json", "killed", "operations"


def install() -> None:
    """Kill this process as planned; processes that are no ranks go on unchanged."""
    if PLACE not in os.environ or "RANK" not in os.environ:
        return
    place, rank = Path(os.environ[PLACE]), int(os.environ["RANK"])
    plan = json.loads((place / PLAN).read_text())
    runs, moments = Path(plan["runs"]), plan["moments"]
    if not moments and rank == 0:
        count_operations(runs, lambda number, name: _note(place / COUNTED, str(number)))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt >= len(moments) or moments[attempt]["rank"] != rank:
        return
    if (seconds := moments[attempt]["seconds"]) is not None:
        timer = threading.Timer(seconds, _kill, (place,))
        timer.daemon = True
        timer.start()
    else:
        last = moments[attempt]["operation"]
        count_operations(runs, lambda number, name: _kill(place) if number == last else None)


def _note(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _kill(place: Path) -> None:
    with open(place / KILLED, "a") as file:
        file.write("killed\n")
    os.kill(os.getpid(), signal.SIGKILL)
