"""A start model for one game, from uniformly random play through the real prompts.

Shared by `make_embedded_roshambo.py` and `make_embedded_kuhn.py`, which name the game, its phrases
and the default options.
"""

import argparse
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from make_embedded import (
    Shape,
    bootstrap_chat,
    build_model,
    finish_tokenizer,
    samples_of,
    save,
    supervise,
    train_tokenizer,
)
from make_embedded_rps import TEMPLATE

from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.play import PlaySetup, play_groups
from mage.types import Request, Sample, Task


@dataclass(frozen=True)
class Game:
    """What is particular to a game.

    `phrases` become tokens of their own. `spelled` is a pattern of text from which the tokenizer
    learns no words, and `texts` is the number of meta-episodes that it reads.
    """

    moves: tuple[str, ...]
    phrases: tuple[str, ...]
    play_setup: Callable[[ScriptedEngine, Chat], PlaySetup]
    texts: int
    spelled: str | None = None


@dataclass(frozen=True)
class Defaults:
    """Default options; `count` and `batch` are meta-episodes."""

    steps: int
    batch: int
    count: int
    layers: int


def random_reply(rng: random.Random, moves: tuple[str, ...], request: Request) -> str:
    # A reply without a legal move is not learned from; the message after it is a known text.
    return f"<action>{'?' if rng.random() < 0.02 else rng.choice(moves)}</action>"


def collect(game: Game, chat: Chat, count: int, seed: int) -> list[list[Sample]]:
    """The samples of scripted meta-episodes, one list per meta-episode."""
    rng = random.Random(seed)
    engine = ScriptedEngine(partial(random_reply, rng, game.moves), chat.encode)
    setup = game.play_setup(engine, chat)
    name = setup.environment.name
    tasks = [Task(name, rng.getrandbits(60), n % 2, "random", "train") for n in range(count)]
    played = play_groups(setup, [[task] for task in tasks], rng.getrandbits(60))
    return [samples_of(chat, meta) for meta in played]


def make_tokenizer(game: Game) -> Chat:
    """One token for each of the phrases; other text is spelled in words and bytes."""
    start = bootstrap_chat()
    rows = [sample for meta in collect(game, start, game.texts, 1) for sample in meta]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    if game.spelled is not None:
        texts = [re.sub(game.spelled, " ", text) for text in texts]
    words = [re.sub(r"<[^>]*>", "\n", text) for text in texts]
    return finish_tokenizer(train_tokenizer(words, 400), game.phrases, TEMPLATE)


def make(title: str, game: Game, defaults: Defaults) -> None:
    """Read the command line, make the model and write it."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--batch", type=int, default=defaults.batch, help="meta-episodes a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--count", type=int, default=defaults.count, help="meta-episodes in all")
    names = ("HIDDEN", "LAYERS", "HEADS", "KV", "FF")
    shape = (64, defaults.layers, 4, 4, 128)
    parser.add_argument("--shape", type=int, nargs=5, default=shape, metavar=names)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    chat = make_tokenizer(game)
    # A tied matrix would push all words that are never a reply in one direction, so that the model
    # could not tell the words of an observation apart.
    model = build_model(Shape(*args.shape), chat.tokenizer.get_vocab_size(), chat, tied=False)
    tokens = chat.tokenizer.get_vocab_size()
    print(f"{tokens} tokens, {model.num_parameters():,} parameters", flush=True)
    metas = collect(game, chat, args.count, args.seed)
    supervise(model, [metas], args.steps, args.batch, args.lr, args.seed)
    save(model, chat.tokenizer, args.out, TEMPLATE)
