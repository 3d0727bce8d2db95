"""`python -m benchmarks [NAME ...]`: run all or some benchmarks and print their tables."""

import importlib
import os
import sys
from collections.abc import Iterator

from benchmarks.measure import Comparison, Skipped

NAMES = ("packing", "generate", "trl", "sokoban", "webshop", "adapters", "cuda_engine")
# These have options of their own: python -m benchmarks.NAME --help
PROGRAMS = (
    "paper_scale",
    "vllm",
    "cache",
    "drift",
    "drafts",
    "host",
    "prefixes",
    "steps",
    "products",
    "busy",
    "formats",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(
            f"there is no benchmark {', '.join(unknown)}: benchmarks are {', '.join(NAMES)}; "
            f"python -m benchmarks.NAME starts {' and '.join(PROGRAMS)}",
            file=sys.stderr,
        )
        return 2
    for name in names or NAMES:
        benchmark = importlib.import_module(f"benchmarks.{name}")
        load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(
            f"{str(benchmark.__doc__).splitlines()[0]}\n"
            f"(details of the comparison: benchmarks/{name}.py; {load})",
            flush=True,
        )
        print_lines(benchmark.measure())
    return 0


def print_lines(found: Iterator[Comparison | str]) -> None:
    try:
        for comparison in found:
            print(comparison if isinstance(comparison, str) else comparison.line(), flush=True)
    except Skipped as reason:
        print(reason)
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
