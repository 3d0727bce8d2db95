"""The figures of an update: metrics as sums that several ranks can add up, seconds, memory."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from mage.types import Credit, MetaEpisode

# Name -> sum and count. A metric with the count 0 is a total and not a mean.
MetricSums = dict[str, tuple[float, float]]


def play_sums(
    metas: Sequence[MetaEpisode], by_world: bool = False, tools: bool = False
) -> MetricSums:
    """Results of an update's meta-episodes, by episode position; in a mix also by world.

    `tools`: an environment offers tools, so their calls are counted.
    """
    sums: dict[str, list[float]] = defaultdict(list)
    for meta in metas:
        for number, episode in enumerate(meta.episodes, start=1):
            sums[f"score_{number}"].append(episode.score)
            sums[f"success_{number}"].append(episode.outcome == "won")
            if by_world:
                world = meta.task.environment
                sums[f"{world}_score_{number}"].append(episode.score)
                sums[f"{world}_success_{number}"].append(episode.outcome == "won")
            for name, value in episode.bonuses:
                sums[f"reward_{name}"].append(value)
            sums["illegal_rate"] += [turn.illegal for turn in episode.turns]
            sums["cut_off_rate"] += [turn.cut_off for turn in episode.turns]
            sums["folded_rate"] += [turn.folded > 0 for turn in episode.turns]
            sums["overflow_rate"] += [turn.overflow for turn in episode.replies]
            sums["reply_length"] += [turn.tokens for turn in episode.turns]
            if tools:
                sums["tool_calls"] += [len(turn.calls) for turn in episode.turns]
                sums["tool_errors"] += [
                    call.failed for turn in episode.turns for call in turn.calls
                ]
            if episode.reflection is not None:
                sums["reflection_length"].append(len(episode.reflection.completion.token_ids))
    totals = {
        "episodes": (float(sum(len(meta.episodes) for meta in metas)), 0.0),
        "generated_tokens": (float(sum(meta.generated_tokens for meta in metas)), 0.0),
    }
    averaged = {name: (float(sum(values)), float(len(values))) for name, values in sums.items()}
    return averaged | totals


def credit_sums(credits: Sequence[Credit]) -> MetricSums:
    """Returns, advantages, and groups whose members all have the same advantage.

    Such a flat group gives no learning signal.
    """
    groups: dict[int, set[float]] = defaultdict(set)
    for one in credits:
        groups[one.source.where.group].add(round(one.advantage, 9))
    return {
        "return_mean": (sum(one.source.value for one in credits), len(credits)),
        "advantage_square": (sum(one.advantage**2 for one in credits), len(credits)),
        "flat_groups": (sum(len(values) == 1 for values in groups.values()), len(groups)),
    }


def means(all_sums: Sequence[MetricSums]) -> dict[str, float]:
    """The sums of all ranks as one set of figures: means, or totals where the count is 0."""
    names = sorted({name for sums in all_sums for name in sums})
    added = {
        name: [
            sum(part)
            for part in zip(*(sums.get(name, (0.0, 0.0)) for sums in all_sums), strict=True)
        ]
        for name in names
    }
    return {name: total / count if count else total for name, (total, count) in added.items()}


class Timer:
    """Seconds of the phases of an update, for the timing file."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase; `total` is the sum of all phases."""
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds[name] = spent
        self.seconds["total"] = self.seconds.get("total", 0.0) + spent

    def add(self, before: Mapping[str, float], now: Mapping[str, float], prefix: str = "") -> None:
        """Add counters that another object has kept, as their difference since `before`."""
        self.seconds |= {f"{prefix}{name}": now[name] - before[name] for name in now}


def memory_usage() -> dict[str, float]:
    """Gigabytes on the host (where the system reports them) and on the GPU.

    `memory_device` is in use now, so a leak shows as a rising line. `memory_device_held` is
    reserved by this process: another process on the same card cannot use it.
    `memory_device_peak` is the most that was ever reserved.
    """
    statm = Path("/proc/self/statm")
    host = {}
    if statm.is_file():
        host = {"memory_host": int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9}
    if not torch.cuda.is_available():
        return host
    return host | {
        "memory_device": torch.cuda.memory_allocated() / 1e9,
        "memory_device_held": torch.cuda.memory_reserved() / 1e9,
        "memory_device_peak": torch.cuda.max_memory_reserved() / 1e9,
    }
