"""Warm-up: a supervised stage before reinforcement learning.

It imitates scripted play (`scripted.py`) with all weights or the recipe's adapters. Random play
teaches the answer format and no skill; the play of an expert also teaches how to win. With
`warmup.own_steps` a second stage follows: the model plays itself, and the expert's move is taught
in every situation (`labelled.py`). `batches.py` writes the batches. `skill.py` measures the model
on held-out situations before and after.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mage.config.sections import LearnOptions
from mage.config.warmup_options import WarmupOptions
from mage.learn.adapters import save_trained
from mage.learn.imitate.batches import (
    Writer,
    expert_batches,
    held_out,
    make_script,
    own_batches,
    random_batches,
    write_chunks,
)
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.skill import Skill, blind_share, measure, uniform_entropy
from mage.learn.imitate.supervised import imitate
from mage.learn.pack.packer import best_layout, check_packable, short_layout
from mage.learn.trainable import Trainable
from mage.models.architecture import PreTrainedModel
from mage.models.base import atomic_folder
from mage.play import PlaySetup
from mage.run_folder.files import write_checksums
from mage.seeds import derive
from mage.types import Task

_RISE = 0.1  # share of the steps in which the learning rate rises
_FALL = 0.1  # fraction of the learning rate that is left at the end


@dataclass(frozen=True, slots=True)
class Warmup:
    """Result of a warm-up.

    `uniform` is the entropy of uniformly random legal moves. `blind` is the share of legal moves of
    a player that knows the moves of the game but ignores the situation.
    """

    turns: int
    notes: int
    before: Skill
    after: Skill
    uniform: float
    blind: float
    losses: tuple[float, ...]
    demonstrations: int  # taught replies of scripted play
    own_demonstrations: int  # taught replies in situations of the model's own play
    play: str  # "random" or "expert"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Watch = Callable[[str], None]


def warm_up(
    model: PreTrainedModel,
    setup: PlaySetup,
    tasks: Iterator[Task],
    options: WarmupOptions,
    seed: int,
    *,
    learn: LearnOptions,
    trainable: Trainable,
    watch: Watch,
    own_tasks: Iterator[Task] | None = None,
    write: Writer | None = None,
) -> Warmup:
    """Train `model` in place on scripted play; measure it before and after.

    The agent of `setup` plays with `model`. Of `learn` only the batch sizes are used. `own_tasks`
    are for the model's own play. `write` writes expert play; by default this process does.
    """
    if learn.packed:
        check_packable(model)
    moves, notes = held_out(
        setup, tasks, options.turns, derive(seed, "measured"), make_script(options)
    )
    if options.play == "random":  # expert play is written while the model learns
        watch(f"writing {options.steps * options.batch:,} demonstrations of random play")
    batches = _taught_batches(setup, tasks, own_tasks or tasks, options, seed, write)
    watch(f"measuring: {len(moves)} moves and {len(notes)} notes")
    worlds = setup.environment.inside().values()
    tools = any(setup.agent.tools(world) for world in worlds)
    before = measure(model, setup.agent, moves, notes, learn, tools)
    losses = _teach(model, trainable, batches, options, learn, watch)
    setup.agent.engine.refresh(setup.agent.engine.policy_version + 1)
    watch("measuring again")
    after = measure(model, setup.agent, moves, notes, learn, tools) if losses else before
    return Warmup(
        turns=len(moves),
        notes=len(notes),
        before=before,
        after=after,
        uniform=uniform_entropy(moves),
        blind=blind_share(moves),
        losses=tuple(losses),
        demonstrations=options.steps * options.batch,
        own_demonstrations=options.own_steps * options.batch,
        play=options.play,
    )


def _taught_batches(
    setup: PlaySetup,
    tasks: Iterator[Task],
    own_tasks: Iterator[Task],
    options: WarmupOptions,
    seed: int,
    write: Writer | None,
) -> Iterator[list[Demonstration]]:
    """The batches of both stages: scripted play, then the model's own play."""
    taught, script = derive(seed, "taught"), make_script(options)
    if script.expert:
        write = write or (lambda chunks: write_chunks(setup, script, chunks))
        scripted = expert_batches(write, tasks, options.batch, taught)
    else:
        order = derive(seed, "order")
        scripted = random_batches(setup, tasks, options, seed=taught, order_seed=order)
    if not options.own_steps:
        return scripted
    own = own_batches(setup, own_tasks, options, derive(seed, "own"))
    return itertools.chain(itertools.islice(scripted, options.steps), own)


def _teach(
    model: PreTrainedModel,
    trainable: Trainable,
    batches: Iterator[list[Demonstration]],
    options: WarmupOptions,
    learn: LearnOptions,
    watch: Watch,
) -> list[float]:
    """One optimizer step per batch; every demonstration is used once."""
    steps = options.steps + options.own_steps
    optimizer = torch.optim.AdamW(
        trainable.masters.values(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.0
    )
    layout = best_layout(model, learn) if options.play == "expert" else short_layout(learn)
    losses: list[float] = []

    def note(parts: list[Tensor]) -> None:
        losses.append(sum((part.item() for part in parts), 0.0))
        watch(f"step {len(losses)} of {steps}, loss {losses[-1]:.3f}")

    launched: list[Tensor] | None = None
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(options, step)
        samples = [demonstration.sample() for demonstration in next(batches)]
        parts = imitate(
            model,
            optimizer,
            samples,
            trainable,
            layout=layout,
            micro_tokens=learn.tokens_at_once,
            recompute=bool(learn.recompute),
        )
        if launched is not None:  # read while a GPU computes the next step
            note(launched)
        launched = parts
    if launched is not None:
        note(launched)
    return losses


def lr_at(options: WarmupOptions, step: int) -> float:
    """A rise over the first steps times a linear fall over all: the peak is a little below lr."""
    steps = options.steps + options.own_steps
    rise = max(1, round(_RISE * steps))
    return options.lr * min(1.0, (step + 1) / rise) * (1 - (1 - _FALL) * step / max(1, steps - 1))


def save_warm(
    trainable: Trainable, source: Path, base: str, target: Path, record: dict[str, Any]
) -> None:
    """Write the result folder atomically, with `warmup.json`.

    It holds the model in the dtype of the source with its tokenizer, or the adapters alone, with
    `base` as the name of their model.
    """
    with atomic_folder(target) as partial:
        save_trained(trainable, source, base, partial)
        (partial / "warmup.json").write_text(json.dumps(record, indent=1) + "\n")
        write_checksums(partial)
