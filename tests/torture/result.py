"""What a torture test found, and the table of all of them."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """Number of attempts of a test, and one line for every failure."""

    test: str
    attempts: int
    failures: tuple[str, ...] = ()


def show_progress(test: str, done: int, of: int, failures: Iterable[str] = ()) -> None:
    """One line on the standard error for every failure, every 50th attempt and the last one."""
    for line in failures:
        sys.stderr.write(f"FAILED {test}: {line}\n")
    if done % 50 == 0 or done == of:
        sys.stderr.write(f"{test}: {done:,} of {of:,}\n")
    sys.stderr.flush()


def table(results: Iterable[Result]) -> str:
    """The results as a Markdown table, with the failures below it."""
    results = list(results)
    rows = [f"| {one.test} | {one.attempts:,} | {len(one.failures):,} |" for one in results]
    failures = [f"FAILED {one.test}: {line}" for one in results for line in one.failures]
    return "\n".join(["| test | attempts | failures |", "|---|---|---|", *rows, *failures])
