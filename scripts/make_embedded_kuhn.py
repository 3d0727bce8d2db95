"""Make the fifth embedded model: a tiny Llama for Kuhn poker against players it has never met.

It is trained on scripted play through the real prompts: uniformly random moves against random
players. So it knows the words and the answer format. How to play, and what the record of earlier
hands says about an opponent, comes from reinforcement learning alone.

    python scripts/make_embedded_kuhn.py --out mage/models/shipped/embedded-kuhn

The shipped model was made with the default options on one thread (45 s of computing). Its last loss
was .2307; uniformly random moves in the right format have ln(2) / 3 = .2310. Replies that are not
legal moves have probability .0005. With a third of the steps it was .01, and training broke the
format.
"""

import argparse
import random
import re
from functools import partial
from itertools import product
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
from mage.environments.kuhn_poker import CARDS, KuhnPoker
from mage.memory.notes import Notes
from mage.play import Setting, play_groups
from mage.types import Request, Sample, Task

WORLD = KuhnPoker()
# The moves of a hand as each seat reads them, and whether they end with a showdown.
OPEN = (
    "none",
    "opponent pass",
    "opponent bet",
    "you pass, opponent bet",
)
FOLDED = (
    "you pass, opponent bet, you pass",
    "you bet, opponent pass",
    "opponent pass, you bet, opponent pass",
    "opponent bet, you pass",
)
SHOWN = (
    "you pass, opponent pass",
    "you pass, opponent bet, you bet",
    "you bet, opponent bet",
    "opponent pass, you pass",
    "opponent pass, you bet, opponent bet",
    "opponent bet, you bet",
)
# One token for each observation and for each piece of evidence about the opponent. The card of the
# present hand and the card of an earlier hand are different tokens.
PHRASES = (
    *system_text(WORLD).split("\n"),
    *(f"{WORLD.instance(seat)}\n" for seat in range(2)),
    "Game 1 of 1. ",
    *(f"Game {game} of 3. " for game in range(1, 4)),
    *(f"Your card: {card}. Moves: {moves}." for card, moves in product(CARDS, OPEN)),
    *(f"Game {game}: " for game in range(1, 4)),
    *(f"Your card: {card}. " for card in CARDS),
    *(f"Moves: {moves}. Opponent's card: hidden. " for moves in FOLDED),
    *(f"Moves: {moves}. Opponent's card: {card}. " for moves, card in product(SHOWN, CARDS)),
    *(f"You {result} {chips}.\n" for result in ("won", "lost") for chips in ("1 chip", "2 chips")),
)


def random_move(rng: random.Random, request: Request) -> str:
    # A reply without a legal move is not learned from; the message after it is a known text.
    return f"<action>{'?' if rng.random() < 0.02 else rng.choice(('pass', 'bet'))}</action>"


def collect(chat: Chat, count: int, seed: int) -> list[list[Sample]]:
    """The samples of scripted meta-episodes of three hands, one list per meta-episode."""
    rng = random.Random(seed)
    engine = ScriptedEngine(partial(random_move, rng), chat.encode)
    agent = Agent(engine, chat, SamplingOptions())
    setting = Setting(WORLD, agent, Notes(keep="history"), episodes=3)
    tasks = [Task(WORLD.name, rng.getrandbits(60), n % 2, "random", "train") for n in range(count)]
    played = play_groups(setting, [[task] for task in tasks], rng.getrandbits(60))
    return [samples_of(chat, meta) for meta in played]


def make_tokenizer() -> Chat:
    """One token for each of `PHRASES`; other text is spelled in words and bytes."""
    start = bootstrap_chat()
    rows = [sample for meta in collect(start, 100, 1) for sample in meta]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    words = [re.sub(r"<[^>]*>", "\n", text) for text in texts]
    return finish_tokenizer(train_tokenizer(words, 400), PHRASES, TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16, help="meta-episodes a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--count", type=int, default=6000, help="meta-episodes in all")
    shape_names = ("HIDDEN", "LAYERS", "HEADS", "KV", "FF")
    parser.add_argument(
        "--shape", type=int, nargs=5, default=(64, 2, 4, 4, 128), metavar=shape_names
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    chat = make_tokenizer()
    # A tied matrix would push all words that are never a reply in one direction, so that the model
    # could not tell the records of two hands apart.
    model = build_model(Shape(*args.shape), chat.tokenizer.get_vocab_size(), chat, tied=False)
    print(
        f"{chat.tokenizer.get_vocab_size()} tokens, {model.num_parameters():,} parameters",
        flush=True,
    )
    metas = collect(chat, args.count, args.seed)
    supervise(model, [metas], args.steps, args.batch, args.lr, args.seed)
    save(model, chat.tokenizer, args.out, TEMPLATE)


if __name__ == "__main__":
    main()
