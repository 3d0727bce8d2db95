"""Make the fourth embedded model: a tiny Llama for long games of rock-paper-scissors.

It is trained on scripted play through the real prompts, with the summary of predictors in every
observation: uniformly random throws against random players. So it knows the words and the answer
format. What to do with the summary comes from reinforcement learning alone.

    python scripts/make_embedded_roshambo.py --out mage/models/shipped/embedded-roshambo

The shipped model was made with the default options on one thread (20 s of computing). It has one
layer: a vote of the words needs no more, and an update costs a third. Its last loss was .378;
uniformly random throws in the right format have ln(3) / 3 = .366.
"""

import argparse
import random
import re
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

from mage.agent.agent import Agent, SamplingOptions, system_text
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.memory.notes import Notes
from mage.play import Setting, play_groups
from mage.types import Request, Sample, Task

WORLD = RockPaperScissors(throws=10, summary="predictors")
PHRASES = (
    *system_text(WORLD).split("\n"),
    f"{WORLD.instance(0)}\nGame 1 of 1. ",
    *(f"{own}-{other}. " for own in THROWS for other in THROWS),
    "Predictors:",
    " -",
    *(f" {throw}{digit}" for throw in THROWS for digit in range(7)),
)


def random_throw(rng: random.Random, request: Request) -> str:
    # A reply without a legal throw is not learned from; the message after it is a known text.
    return f"<action>{'?' if rng.random() < 0.02 else rng.choice(THROWS)}</action>"


def collect(chat: Chat, count: int, seed: int) -> list[list[Sample]]:
    """The samples of scripted games, one list per game."""
    rng = random.Random(seed)
    engine = ScriptedEngine(partial(random_throw, rng), chat.encode)
    agent = Agent(engine, chat, SamplingOptions(), window=0)
    setting = Setting(WORLD, agent, Notes(keep="none"), episodes=1, numbered=False)
    tasks = [Task(WORLD.name, rng.getrandbits(60), n % 2, "random", "train") for n in range(count)]
    played = play_groups(setting, [[task] for task in tasks], rng.getrandbits(60))
    return [samples_of(chat, meta) for meta in played]


def make_tokenizer() -> Chat:
    """One token for each word of a predictor and for each part of the text that recurs."""
    start = bootstrap_chat()
    rows = [sample for meta in collect(start, 8, 1) for sample in meta]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    words = [re.sub(r"<[^>]*>", "\n", re.sub(r"\w+\d", " ", text)) for text in texts]
    return finish_tokenizer(train_tokenizer(words, 400), PHRASES, TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=2, help="games a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    shape_names = ("HIDDEN", "LAYERS", "HEADS", "KV", "FF")
    parser.add_argument(
        "--shape", type=int, nargs=5, default=(64, 1, 4, 4, 128), metavar=shape_names
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    chat = make_tokenizer()
    # A tied matrix would push all words that are never a reply in one direction, so that the model
    # could not tell the words of predictors apart.
    model = build_model(Shape(*args.shape), chat.tokenizer.get_vocab_size(), chat, tied=False)
    print(
        f"{chat.tokenizer.get_vocab_size()} tokens, {model.num_parameters():,} parameters",
        flush=True,
    )
    supervise(model, [collect(chat, 200, args.seed)], args.steps, args.batch, args.lr, args.seed)
    save(model, chat.tokenizer, args.out, TEMPLATE)


if __name__ == "__main__":
    main()
