"""`python -m benchmarks [NAME ...]`: run all benchmarks, or some, and print a table each."""

import importlib
import os
import sys

NAMES = ("packing", "prefix_cache", "barrier", "generate", "trl")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}: benchmarks are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        benchmark = importlib.import_module(f"benchmarks.{name}")
        print(f"{benchmark.__doc__.splitlines()[0]}  [load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores]", flush=True)
        for line in benchmark.report():
            print(line, flush=True)
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
