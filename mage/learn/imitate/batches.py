"""Streams of batches for the warm-up, and the held-out situations that measure it.

The tasks are an endless iterator, and so are the batches of expert play and of own play.
A BLOCK is a list of turns that stay together when blocks are shuffled. The turns of an episode form
a block: they share their prompt, so a batch of whole episodes has fewer tokens to compute.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from mage.config.errors import UserError
from mage.config.warmup_options import WarmupOptions
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.labelled import label_play
from mage.learn.imitate.scripted import Script, write_demonstrations
from mage.play import PlaySetup
from mage.seeds import derive
from mage.types import Task

_TASKS_AT_ONCE = 8  # of scripted play; small, because the last batch may exceed the need
_EMPTY_ROUNDS = 20  # of play in a row without a situation of the kind that is needed
_WINDOW = 16  # batches of expert play that are shuffled together

Block = list[Demonstration]
Chunk = tuple[list[Task], int]  # tasks and the seed of their scripted play
Writer = Callable[[Iterable[Chunk]], Iterator[list[Demonstration]]]


def make_script(options: WarmupOptions) -> Script:
    """The scripted player of the options."""
    return Script(
        expert=options.play == "expert",
        noise=options.noise,
        repeat_wins=options.repeat_wins,
        copies=options.copies,
    )


def held_out(
    setup: PlaySetup, tasks: Iterator[Task], turns: int, seed: int, script: Script
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Situations to measure the model on, which are not taught.

    `turns` moves from scripted play, and a quarter as many notes if the memory reflects. There are
    fewer notes, or none, if play has hardly any: an expert that always wins writes none where
    play.stop_on_success is set.
    """
    wanted = {
        "play": turns,
        "reflect": -(-turns // 4) if setup.memory.reflects and setup.episodes > 1 else 0,
    }
    found: dict[str, list[Demonstration]] = {"play": [], "reflect": [], "call": []}
    empty_rounds = 0
    while any(len(found[kind]) < count for kind, count in wanted.items()):
        seed = derive(seed)  # every round has a seed of its own, and the last one draws the sample
        notes = len(found["reflect"])
        for demonstration in _write_some(setup, tasks, seed, script):
            found[demonstration.kind].append(demonstration)
        empty_rounds = 0 if len(found["reflect"]) > notes else empty_rounds + 1
        if empty_rounds == _EMPTY_ROUNDS:
            wanted["reflect"] = min(wanted["reflect"], len(found["reflect"]))
    rng = random.Random(seed)
    return rng.sample(found["play"], wanted["play"]), rng.sample(
        found["reflect"], wanted["reflect"]
    )


def random_batches(
    setup: PlaySetup, tasks: Iterator[Task], options: WarmupOptions, *, seed: int, order_seed: int
) -> Iterator[list[Demonstration]]:
    """`options.steps` batches of random play or a few more. All are written at once."""
    blocks = _random_blocks(setup, tasks, options.steps * options.batch, seed)
    return _batches(blocks, options.batch, order_seed)


def _random_blocks(setup: PlaySetup, tasks: Iterator[Task], count: int, seed: int) -> list[Block]:
    """At least `count` turns of random play, each in a block of its own: prompts are short."""
    blocks: list[Block] = []
    while len(blocks) < count:
        written = _write_some(setup, tasks, derive(seed, len(blocks)), Script())
        blocks += [[one] for one in written]
    return blocks


def write_chunks(
    setup: PlaySetup, script: Script, chunks: Iterable[Chunk]
) -> Iterator[list[Demonstration]]:
    """The demonstrations of every chunk, written in this process."""
    return (write_demonstrations(setup, tasks, seed, script) for tasks, seed in chunks)


def expert_batches(
    write: Writer, tasks: Iterator[Task], size: int, seed: int
) -> Iterator[list[Demonstration]]:
    """Endless batches of expert play, written while the model learns.

    Episodes are shuffled within a window of batches.
    """
    chunks = (
        (list(itertools.islice(tasks, _TASKS_AT_ONCE)), derive(seed, number))
        for number in itertools.count()
    )
    written = write(chunks)
    for number in itertools.count():
        blocks: list[Block] = []
        while sum(map(len, blocks)) < _WINDOW * size:
            blocks += _episodes(next(written))
        yield from _batches(blocks, size, derive(seed, number, "order"))


def _batches(blocks: list[Block], size: int, seed: int) -> Iterator[list[Demonstration]]:
    """Full batches of `size` turns of the shuffled blocks. The rest is dropped."""
    random.Random(seed).shuffle(blocks)
    order = [demonstration for block in blocks for demonstration in block]
    return (order[at : at + size] for at in range(0, len(order) - size + 1, size))


def own_batches(
    setup: PlaySetup, tasks: Iterator[Task], options: WarmupOptions, seed: int
) -> Iterator[list[Demonstration]]:
    """Endless batches from play of the current model, with the expert's move in every situation.

    The model plays again when all batches have been used.
    """
    engine, blocks, empty_rounds = setup.agent.engine, list[Block](), 0
    taught = {"repeat_wins": options.repeat_wins, "after_loss": options.own_labels != "all"}
    for number in itertools.count():
        engine.refresh(engine.policy_version + 1)  # the weights have changed
        some = list(itertools.islice(tasks, max(engine.capacity or 0, _TASKS_AT_ONCE)))
        played = label_play(setup, some, derive(seed, number), **taught)
        engine.release()
        empty_rounds = 0 if played else empty_rounds + 1
        if empty_rounds == _EMPTY_ROUNDS:
            lost = "" if options.own_labels == "all" else " after a lost first episode"
            raise UserError(
                f"own play has nothing to teach: {_EMPTY_ROUNDS} rounds in a row had no expert's "
                f"move{lost}; set warmup.own_steps = 0"
            )
        blocks += _episodes(played)
        if sum(map(len, blocks)) >= options.batch:
            yield from _batches(blocks, options.batch, derive(seed, number, "order"))
            blocks = []


def _episodes(demonstrations: Sequence[Demonstration]) -> list[Block]:
    """One block for each episode."""

    def episode(one: Demonstration) -> tuple[int, int]:
        return one.where.group, one.where.episode

    return [list(block) for _, block in itertools.groupby(demonstrations, key=episode)]


def _write_some(
    setup: PlaySetup, tasks: Iterator[Task], seed: int, script: Script
) -> list[Demonstration]:
    """Scripted play of the next few tasks; raises if the script cannot play this environment."""
    some = list(itertools.islice(tasks, _TASKS_AT_ONCE))
    written = write_demonstrations(setup, some, seed, script)
    if not any(demonstration.kind == "play" for demonstration in written):
        raise UserError(
            f'warmup.play = "expert", but {setup.environment.name} has no expert; set '
            'warmup.play to "random"'
        )
    return written
