"""Warm-up: a supervised stage before reinforcement learning.

It imitates scripted play (`demonstrations.py`) with all weights or the recipe's adapters. Random
play teaches the answer format and no skill; the play of an expert also teaches how to win. With
`warmup.own_steps` a second stage follows: the model plays itself, and the expert's move is taught
in every situation. The warm-up is measured on held-out situations: the share of readable answers,
the share of legal moves, and the entropy among the legal moves. RL needs that entropy to explore.
"""

import itertools
import json
import math
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from mage.agent.agent import Agent
from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.config.warmup_options import WarmupOptions
from mage.engines.base import run
from mage.environments.base import named
from mage.learn.imitate.demonstrations import (
    Demonstration,
    Script,
    facts_of,
    label_play,
    write_demonstrations,
)
from mage.learn.imitate.supervised import action_entropy, imitate
from mage.learn.pack.packer import best_layout, check_packable
from mage.learn.pack.packing import Layout
from mage.learn.trainable import Adapters, Trainable
from mage.models.adapters import save_adapters
from mage.models.base import atomic_folder
from mage.models.sources.base import copy_permissions
from mage.play import PlaySetup
from mage.run_folder.files import write_checksums
from mage.seeds import derive
from mage.types import Task

_AT_ONCE = 8  # tasks of scripted play; small, because the last batch may exceed the need
_ROUNDS = 20  # of own play without a situation to teach, before an error
_WINDOW = 16  # batches of expert play that are shuffled together
_RISE = 0.1  # share of the steps in which the learning rate rises
_FALL = 0.1  # fraction of the learning rate that is left at the end
_KEPT = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "generation_config.json", "LICENSE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Skill:
    """How well a model follows the format. `entropy` is over the legal moves (nats).

    `true_notes` is the share of notes that end by themselves and state only facts of the episode;
    None without notes.
    """

    readable: float
    legal: float
    entropy: float
    true_notes: float | None


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
Chunk = tuple[list[Task], int]  # tasks and the seed of their scripted play
Writer = Callable[[Iterable[Chunk]], Iterator[list[Demonstration]]]


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
    script = make_script(options)
    moves, notes = _panel(setup, tasks, options.turns, derive(seed, "measured"), script)
    count = options.steps * options.batch
    watch(f"writing {count:,} demonstrations of {options.play} play")
    if script.expert:
        write = write or (lambda chunks: write_chunks(setup, script, chunks))
        batches = _expert_batches(write, tasks, options.batch, derive(seed, "taught"))
    else:
        blocks = _enough(setup, tasks, count, derive(seed, "taught"))
        batches = _batches(blocks, options.batch, derive(seed, "order"))
    if options.own_steps:
        own = _labelled_batches(setup, own_tasks or tasks, options, derive(seed, "own"))
        batches = itertools.chain(itertools.islice(batches, options.steps), own)
    watch(f"measuring: {len(moves)} moves and {len(notes)} notes")
    before = measure(model, setup.agent, moves, notes, learn)
    losses = _teach(model, trainable, batches, options, learn, watch)
    setup.agent.engine.refresh(setup.agent.engine.policy_version + 1)
    watch("measuring again")
    after = measure(model, setup.agent, moves, notes, learn) if losses else before
    uniform = sum(math.log(len(demonstration.legal)) for demonstration in moves) / len(moves)
    return Warmup(
        turns=len(moves),
        notes=len(notes),
        before=before,
        after=after,
        uniform=uniform,
        blind=_blind(moves),
        losses=tuple(losses),
        demonstrations=count,
        own_demonstrations=options.own_steps * options.batch,
        play=options.play,
    )


def _panel(
    setup: PlaySetup, tasks: Iterator[Task], turns: int, seed: int, script: Script
) -> tuple[list[Demonstration], list[Demonstration]]:
    """`turns` moves from scripted play, and a quarter as many notes if the memory reflects."""
    wanted = {
        "play": turns,
        "reflect": -(-turns // 4) if setup.memory.reflects and setup.episodes > 1 else 0,
    }
    found: dict[str, list[Demonstration]] = {"play": [], "reflect": []}
    while any(len(found[kind]) < count for kind, count in wanted.items()):
        seed = derive(seed)
        for demonstration in _write_some(setup, tasks, seed, script):
            found[demonstration.turn.kind].append(demonstration)
    rng = random.Random(seed)
    return rng.sample(found["play"], wanted["play"]), rng.sample(
        found["reflect"], wanted["reflect"]
    )


def make_script(options: WarmupOptions) -> Script:
    """The scripted player of the options."""
    return Script(options.play == "expert", options.noise, options.repeat_wins)


def _enough(
    setup: PlaySetup, tasks: Iterator[Task], count: int, seed: int
) -> list[list[Demonstration]]:
    """At least `count` demonstrations of random play; each is a block of its own."""
    blocks: list[list[Demonstration]] = []
    while len(blocks) < count:
        written = _write_some(setup, tasks, derive(seed, len(blocks)), Script())
        blocks += [[one] for one in written]
    return blocks


def write_chunks(
    setup: PlaySetup, script: Script, chunks: Iterable[Chunk]
) -> Iterator[list[Demonstration]]:
    """The demonstrations of every chunk, written in this process."""
    return (write_demonstrations(setup, tasks, seed, script) for tasks, seed in chunks)


def _expert_batches(
    write: Writer, tasks: Iterator[Task], size: int, seed: int
) -> Iterator[list[Demonstration]]:
    """Endless batches of expert play, written while the model learns.

    Episodes are shuffled within a window of batches. The turns of an episode stay together: they
    share their prompt, so the batch has fewer tokens to compute.
    """
    chunks = (
        (list(itertools.islice(tasks, _AT_ONCE)), derive(seed, number))
        for number in itertools.count()
    )
    written = write(chunks)
    for number in itertools.count():
        blocks: list[list[Demonstration]] = []
        while sum(map(len, blocks)) < _WINDOW * size:
            blocks += _episodes(next(written))
        yield from _batches(blocks, size, derive(seed, number, "order"))


def _batches(
    blocks: list[list[Demonstration]], size: int, seed: int
) -> Iterator[list[Demonstration]]:
    """Full batches of the shuffled blocks."""
    random.Random(seed).shuffle(blocks)
    order = [demonstration for block in blocks for demonstration in block]
    return (order[at : at + size] for at in range(0, len(order) - size + 1, size))


def _labelled_batches(
    setup: PlaySetup, tasks: Iterator[Task], options: WarmupOptions, seed: int
) -> Iterator[list[Demonstration]]:
    """Batches from play of the current model. Plays again when all batches have been used."""
    engine, blocks = setup.agent.engine, list[list[Demonstration]]()
    taught = {"repeat_wins": options.repeat_wins, "after_loss": options.own_labels != "all"}
    for number in itertools.count():
        if number:  # the weights have changed
            engine.refresh(engine.policy_version + 1)
        some = list(itertools.islice(tasks, max(engine.capacity or 0, _AT_ONCE)))
        played = label_play(setup, some, derive(seed, number), **taught)
        blocks += _episodes(played)
        if sum(map(len, blocks)) >= options.batch:
            yield from _batches(blocks, options.batch, derive(seed, number, "order"))
            blocks = []
        elif number >= _ROUNDS and not played:
            raise UserError(
                "own play has nothing to teach: no first episode was lost; set warmup.own_steps = 0"
            )


def _episodes(demonstrations: Sequence[Demonstration]) -> list[list[Demonstration]]:
    def episode(one: Demonstration) -> tuple[int, int]:
        return one.where.group, one.where.episode

    return [list(block) for _, block in itertools.groupby(demonstrations, key=episode)]


def _write_some(
    setup: PlaySetup, tasks: Iterator[Task], seed: int, script: Script
) -> list[Demonstration]:
    some = list(itertools.islice(tasks, _AT_ONCE))
    written = write_demonstrations(setup, some, seed, script)
    if not any(demonstration.turn.kind == "play" for demonstration in written):
        raise UserError(
            f'warmup.play = "expert", but {setup.environment.name} has no expert; set '
            'warmup.play to "random"'
        )
    return written


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
    layout = best_layout(model, learn) if options.play == "expert" else _short_layout(learn)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(options, step)
        samples = [demonstration.sample() for demonstration in next(batches)]
        losses.append(
            imitate(
                model,
                optimizer,
                samples,
                layout=layout,
                micro_tokens=learn.tokens_at_once,
                recompute=bool(learn.recompute),
                trainable=trainable,
            )
        )
        watch(f"step {step + 1} of {steps}, loss {losses[-1]:.3f}")
    return losses


def _short_layout(learn: LearnOptions) -> Layout:
    """Demonstrations of random play have short prompts: a forest is enough on every device."""
    return "forest" if learn.packed else "rows"


def lr_at(options: WarmupOptions, step: int) -> float:
    """The learning rate rises over the first steps and then falls linearly."""
    steps = options.steps + options.own_steps
    rise = max(1, round(_RISE * steps))
    return options.lr * min(1.0, (step + 1) / rise) * (1 - (1 - _FALL) * step / max(1, steps - 1))


def measure(
    model: PreTrainedModel,
    agent: Agent,
    moves: Sequence[Demonstration],
    notes: Sequence[Demonstration],
    learn: LearnOptions,
) -> Skill:
    """Sample a reply in every situation as in training. Seeds are equal before and after."""
    limit = agent.engine.capacity
    prompts = enumerate(demonstration.turn.prompt_ids for demonstration in moves)
    replies = run((agent.reply(ids, number) for number, ids in prompts), limit=limit)
    words = [agent.read(completion) for completion in replies]
    legal = [
        word is not None and named(word, demonstration.legal) is not None
        for word, demonstration in zip(words, moves, strict=True)
    ]
    prompts = enumerate(demonstration.turn.prompt_ids for demonstration in notes)
    written = run((agent.write(ids, number) for number, ids in prompts), limit=limit)
    true = [
        reply.finish == "eos" and _is_true(reply.text, demonstration)
        for reply, demonstration in zip(written, notes, strict=True)
    ]
    asked = [demonstration.sample() for demonstration in moves]
    return Skill(
        readable=sum(word is not None for word in words) / len(words),
        legal=sum(legal) / len(legal),
        entropy=action_entropy(
            model,
            asked,
            temperature=agent.sampling.temperature,
            layout=_short_layout(learn),
            micro_tokens=learn.tokens_at_once,
        ),
        true_notes=sum(true) / len(true) if true else None,
    )


def _is_true(note: str, demonstration: Demonstration) -> bool:
    said = facts_of(note)
    return bool(said) and set(said) <= set(facts_of(demonstration.turn.observation))


def _blind(moves: Sequence[Demonstration]) -> float:
    """How often the move of another situation is legal."""
    pairs = [(one, other) for one, other in itertools.permutations(moves, 2)]
    return (
        sum(other.turn.action in one.legal for one, other in pairs) / len(pairs) if pairs else 1.0
    )


def save_warm(
    trainable: Trainable, source: Path, base: str, target: Path, record: dict[str, Any]
) -> None:
    """Write the result folder atomically, with `warmup.json`.

    It holds the model in the dtype of the source with its tokenizer, or the adapters alone, with
    `base` as the name of their model.
    """
    with atomic_folder(target) as partial:
        if isinstance(trainable, Adapters):
            save_adapters(
                partial, trainable.masters, rank=trainable.rank, alpha=trainable.alpha, base=base
            )
        else:
            save_model(trainable.model, source, partial)
        (partial / "warmup.json").write_text(json.dumps(record, indent=1) + "\n")
        write_checksums(partial)


def save_model(model: PreTrainedModel, source: Path, target: Path) -> None:
    """Write a transformers folder: weights in the source's dtype, and the source's tokenizer."""
    model.to(_stored_dtype(source)).save_pretrained(target)
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for path in target.glob("*.safetensors"):
        copy_permissions(path, target / "config.json")


def _stored_dtype(source: Path) -> torch.dtype:
    config = json.loads((source / "config.json").read_text())
    found = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
    return found if isinstance(found, torch.dtype) else torch.float32
