"""A run with several ranks on this machine: `python -m mage.reproduce.rank_launcher RUN RANKS`.

torchrun starts `mage.reproduce.worker` once for each rank. If the runner ends, so do the ranks,
after they have saved. Loads torch, but neither models nor the trainer.
"""

import logging
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from mage.config.errors import EXIT_STOPPED
from mage.ranks.processes import stop_with_launcher


def launch(run: Path, ranks: int) -> int:
    """Start the ranks and wait for them; the exit code of the first that failed, else 0."""
    logging.disable(logging.ERROR)  # the message of a rank is the last line of the log
    words = ["--standalone", "--nproc-per-node", str(ranks), "-m", "mage.reproduce.worker"]
    try:
        with stop_with_launcher():
            torchrun([*words, str(run)])
    except SignalException:
        return EXIT_STOPPED
    except ChildFailedError as error:
        return int(error.get_first_failure()[1].exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(launch(Path(sys.argv[1]), int(sys.argv[2])))
