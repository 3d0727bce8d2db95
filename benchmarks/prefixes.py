"""Keys that the decode steps of an update read, how many of them are shared, and padded prefills.

    python -m benchmarks.prefixes --tokenizer FOLDER            # the paper's five recipes
    python -m benchmarks.prefixes kuhn_poker --change=--play.groups=2 --reply-tokens 16

Nothing is computed: as in `benchmarks.host`, the recipe's tasks, prompts, tokenizer, slots and
device loop are real, and a script replies. Random words before its actions make every reply
`--reply-tokens` long. `--noise 1` plays random moves only, so that no episode ends early.

Counted at every decode step, over the sequences that run together:

    apart      every sequence reads all of its keys
    today      the prefix common to all sequences is read once (what the kernel does now)
    groups     a key that members of a group share is read once, at any depth
    tree       a key that any sequences share is read once: the most that sharing can bring

The bound is the ratio of bytes (weights of Qwen3-4B in bfloat16, and keys and values), as if
nothing but memory took time.

Prefills are padded to a few lengths, for which the engine has recorded graphs. `--reply-tokens 1`
leaves the script's replies as they are.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.host import Replay, build, read_recipe, record
from mage.agent.chat import Chat
from mage.config.recipe import Recipe
from mage.engines.gpu.prefill import at_least
from mage.engines.local import LocalEngine
from mage.engines.pool import BLOCK
from mage.models.base import find_model
from mage.models.shapes import PRESETS
from mage.play import PlaySetup, play_groups
from mage.seeds import derive
from mage.training.tasks import draw_tasks
from mage.types import MetaEpisode

RECIPES = tuple(
    f"paper_{world}" for world in ("alfworld", "webshop", "sokoban", "kuhn_poker", "tic_tac_toe")
)
WAYS = ("apart", "today", "groups", "tree")
SHAPE, BANDWIDTH = PRESETS["qwen3-4b"], 4.8e12  # of an H200
WEIGHTS = 2 * SHAPE.parameters
SCALES = 4 * SHAPE.layers * SHAPE.kv_heads  # bytes of a token beside its 8-bit keys and values
KEY_BYTES = {"bfloat16": 2 * SHAPE.cached_values, "int8": SHAPE.cached_values + SCALES}
WORDS = "one two three four five six seven eight nine ten red blue green old new up down"

Array = np.ndarray[Any, Any]
Place = tuple[int, str]  # the group of a request, and the part of its meta-episode


@dataclass(slots=True)
class Counts:
    """Keys read by all decode steps, in total and by part of the meta-episode, for all ways.

    `prefilled` are the tokens of all prefills, `padded` those of their buckets.
    """

    steps: int = 0
    sequences: int = 0
    prefills: int = 0
    prefilled: int = 0
    padded: int = 0
    keys: Array = field(default_factory=lambda: np.zeros(len(WAYS)))
    parts: dict[str, Array] = field(default_factory=lambda: defaultdict(lambda: np.zeros(4)))

    def bound(self, cache: str, before: str = "today", after: str = "tree") -> float:
        """The most that reading `after` instead of `before` can speed up decode steps."""
        return self.step_bytes(cache, before) / self.step_bytes(cache, after)

    def step_bytes(self, cache: str, way: str) -> float:
        return WEIGHTS + float(self.keys[WAYS.index(way)]) / self.steps * KEY_BYTES[cache]

    def saved(self, part: str | None = None) -> Array:
        """Share of the keys that is not read, for all ways."""
        keys = self.keys if part is None else self.parts[part]
        return 1 - keys / keys[0]


class CountingReplay(Replay):
    """Counts the keys of every decode step. A key that n sequences share counts 1/n for each."""

    def __init__(self, engine: LocalEngine, places: dict[int, Place]) -> None:
        super().__init__(engine)
        self.slots, self.sequences = engine.slots, engine.sequences
        self.places, self.counts = places, Counts()
        self.common = np.zeros((engine.slots.count,) * 2, np.int64)  # prompt tokens of two slots
        self.leases = np.zeros(engine.slots.count, np.int64)  # for which `common` was computed
        self.running: tuple[bytes, int] = (b"", 0)

    def _launch(self, joining: Any, decoding: Any, shared: int, *rest: Any) -> Any:
        if joining is not None:
            self.counts.prefills += 1
            self.counts.prefilled += len(joining.ids)
            self.counts.padded += at_least(self.loop.buffer.lengths, len(joining.ids))
        if len(decoding):
            self._count(decoding, shared // BLOCK * BLOCK)
        return super()._launch(joining, decoding, shared, *rest)

    def _count(self, decoding: Array, shared: int) -> None:
        now = (np.stack((decoding, self.sequences.lease[decoding])).tobytes(), shared)
        if now != self.running:
            self.running, self.saved = now, self._save(decoding, shared)
        keys = self.slots.filled[decoding] - self.saved  # [ways, sequences]
        self.counts.steps += 1
        self.counts.sequences += len(decoding)
        self.counts.keys += keys.sum(1)
        for part in set(self.names):
            self.counts.parts[part] += keys[:, self.names == part].sum(1)

    def _save(self, decoding: Array, shared: int) -> Array:
        """Keys that each sequence does not read, for all ways."""
        self._compare(decoding)
        places = [self.places[self._seed(slot)] for slot in decoding]
        groups = np.array([group for group, _ in places])
        self.names = np.array([name for _, name in places])
        common = self.common[np.ix_(decoding, decoding)]
        first = np.full(len(decoding), shared * (1 - 1 / len(decoding)))
        within = once(common * (groups[:, None] == groups))
        return np.stack((np.zeros(len(decoding)), first, within, once(common)))

    def _compare(self, decoding: Array) -> None:
        """Count the common tokens of the prompts of new sequences and of all others."""
        lease, prompt, tokens = self.sequences.lease, self.sequences.prompt, self.slots.tokens
        for slot in decoding[self.leases[decoding] != lease[decoding]].tolist():
            length = int(prompt[slot])
            differs = tokens[decoding, :length] != tokens[slot, :length]
            found = np.where(differs.any(1), differs.argmax(1), length)
            found = np.minimum(found, prompt[decoding])
            self.common[slot, decoding] = self.common[decoding, slot] = found
            self.leases[slot] = lease[slot]

    def _seed(self, slot: int) -> int:
        request = self.requests[slot]
        assert request is not None, "a sequence that decodes has a request"
        return request.seed


def once(common: Array) -> Array:
    """Keys that each sequence saves if a shared key is read once and its cost is divided.

    `common[i, j]` are the tokens that i and j share. If the k-th largest of row i is l, then l
    tokens of i have at least k other readers. The k-th other reader saves 1 / k - 1 / (k + 1).

    >>> once(np.array([[9, 4, 2], [4, 9, 2], [2, 2, 9]]))  # of 2 keys 2/3, of 2 more keys 1/2
    array([2.33333333, 2.33333333, 1.33333333])
    """
    others = common.copy()
    np.fill_diagonal(others, 0)
    rank = np.arange(1, len(others) + 1)
    saved: Array = -np.sort(-others, 1) @ (1 / rank - 1 / (rank + 1))
    return saved


def locate(setup: PlaySetup, tasks_PG: Sequence[Sequence[Any]], seed: int) -> dict[int, Place]:
    """The place of every request of an update, by its seed."""
    turns = [*range(setup.environment.max_turns), "reflect"]
    return {
        derive(derive(seed, group, member), episode, turn): (
            group,
            "reflections" if turn == "reflect" else f"episode {episode + 1}",
        )
        for group, tasks in enumerate(tasks_PG)
        for member in range(len(tasks))
        for episode in range(setup.episodes)
        for turn in turns
    }


def lengthen(chat: Chat, reply: tuple[int, ...], seed: int, tokens: int) -> tuple[int, ...]:
    """The reply after random words, so that it has this number of tokens."""
    missing = max(0, tokens - len(reply))
    words = random.Random(seed).choices(WORDS.split(), k=missing)
    return chat.encode(" ".join(words))[:missing] + reply


def count(
    recipe: Recipe, tokenizer: Path | None, tokens: int, noise: float = 0.3
) -> tuple[Counts, list[MetaEpisode]]:
    """Play the first update of a recipe, with replies of this number of tokens."""
    parts = build(recipe, tokenizer)
    setup, tasks_PG = parts.begin_play(), draw_tasks(recipe, 1)
    seed = derive(recipe.run.seed, "play", 1)
    engine: Any = parts.engine
    replay = CountingReplay(engine, locate(setup, tasks_PG, seed))
    longest = min(recipe.agent.max_tokens, recipe.agent.reflection_tokens)
    end = parts.chat.end_ids[:1]  # a move ends with </action>, a reflection with this token
    for own, reply in record(setup, tasks_PG, seed, noise).items():
        whole = reply + (end if replay.places[own][1] == "reflections" else ())
        replay.replies[own] = lengthen(parts.chat, whole, own, min(tokens, longest))
    engine.refresh(0)
    return replay.counts, play_groups(setup, tasks_PG, seed)


def report(name: str, counts: Counts) -> str:
    lines = [
        f"{name}: {counts.steps:,} steps, {counts.sequences / counts.steps:.1f} sequences and "
        f"{counts.keys[0] / counts.steps:,.0f} keys a step",
        f"  {counts.prefills:,} prefills of {counts.prefilled:,} tokens, "
        f"{counts.padded / counts.prefilled:.3f} times as many with padding",
    ]
    for part in (None, *sorted(counts.parts)):
        saved = (f"{way} {share:.3f}" for way, share in zip(WAYS, counts.saved(part), strict=True))
        lines.append(f"  saved, {part or 'all':12} " + "  ".join(list(saved)[1:]))
    for cache in KEY_BYTES:
        floor = counts.step_bytes(cache, "today") / BANDWIDTH * 1e3
        bounds = (f"{way} {counts.bound(cache, after=way):.3f}" for way in WAYS[2:])
        lines.append(f"  bound, {cache:8} {floor:.2f} ms today   " + "  ".join(bounds))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--tokenizer", help="folder or name of the model whose tokenizer is used")
    parser.add_argument("--change", action="append", default=[], metavar="--OPTION=VALUE")
    parser.add_argument("--reply-tokens", type=int, default=256)
    parser.add_argument("--noise", type=float, default=0.3, help="share of random moves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = find_model(args.tokenizer) if args.tokenizer else None
    for name in args.recipes:
        recipe = read_recipe(name, args.change)
        counts, _ = count(recipe, tokenizer, args.reply_tokens, args.noise)
        print(report(name, counts), flush=True)


if __name__ == "__main__":
    main()
