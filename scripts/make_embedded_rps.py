"""Make the third embedded model: a tiny Llama for rock-paper-scissors.

It first reads transcripts of scripted play through the real prompts, as a language model reads
text: uniformly random throws of the agent against players of several families. So it can guess a
player's next throw from the text. A second stage trains the replies only: uniformly random throws,
and notes that state plain facts of the finished game. The throws in these texts show no skill: what
to do against an opponent comes from reinforcement learning alone. No text contains a player of
`dirichlet-0.5`, the family of the demo.

    python scripts/make_embedded_rps.py --out mage/models/shipped/embedded-rps

The shipped model was made with the default options on one thread. After six equal throws of a
player it gives this throw a probability of .53 to .72.
"""

import argparse
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

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

from mage.agent.agent import Agent, SamplingOptions, system_text
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.seeds import derive
from mage.types import Request, Sample, Task

OPPONENTS = ("random", "dirichlet-0.3", "dirichlet-0.3", "dirichlet-1", "markov-0.5")
Keep = Literal["none", "reflections", "history", "both"]
MEMORIES: tuple[Keep, ...] = ("none", "reflections", "history", "both")
# One token for each part of the text that recurs: prompts have half the tokens and half the cost.
# Other texts (other numbers of throws or games) are spelled in words.
PHRASES = (
    *system_text(RockPaperScissors()).split("\n"),
    *(f"{own}-{other}" for own in THROWS for other in THROWS),
    ", ",
    "3 throws a game.\n",
    "Game 1 of 1. Throw 1.",
    *(f"Game {game} of 3. Throw 1." for game in range(1, 4)),
    *(f". Throw {throw}." for throw in range(1, 6)),
    *(f"Game {game}: " for game in range(1, 5)),
    *(f". Score {score:+d}.\n" for score in range(-5, 6)),
)
# Only a reply needs an end token: the next role ends every other message.
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LENGTHS = ((3, 3), (3, 3), (3, 3), (5, 3), (3, 1))  # throws of a game, games


def scripted_reply(chat: Chat, rng: random.Random, request: Request) -> str:
    """A random throw, or a note of plain facts if the last message asks for one."""
    text = chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
    last = text.rsplit("<|user|>", 1)[1]
    if "Write a short note" in last:
        return factual_note(last, rng)
    if rng.random() < 0.01:
        return "<action>?</action>"  # not learned from; its answer becomes a known text
    return f"<action>{rng.choice(THROWS)}</action>"


def factual_note(message: str, rng: random.Random) -> str:
    """Some of the facts of a finished game, at least one, in random order."""
    rounds = re.findall(r"(rock|paper|scissors)-(rock|paper|scissors)", message)
    if not rounds:
        return "I gave no legal move."
    score = re.search(r"Score ([+-]\d+)", message)
    assert score is not None, "a recap with throws has a score"
    facts = [
        f"Opponent: {', '.join(other for _, other in rounds)}.",
        f"I: {', '.join(own for own, _ in rounds)}.",
        f"Score {score[1]}.",
    ]
    return " ".join(rng.sample(facts, rng.randint(1, len(facts))))


def collect(
    chat: Chat, count: int, seed: int, memories: tuple[Keep, ...] = MEMORIES
) -> list[list[Sample]]:
    """Scripted meta-episodes under these memories, each as the samples of its legal replies."""
    found = []
    for keep in memories:
        rng = random.Random(derive(seed, "rock_paper_scissors", keep))
        engine = ScriptedEngine(partial(scripted_reply, chat, rng), chat.encode)
        agent = Agent(engine, chat, SamplingOptions())
        for throws, episodes in LENGTHS:
            world = RockPaperScissors(throws=throws, max_turns=2 * throws)
            setup = PlaySetup(world, agent, Notes(keep=keep), episodes=episodes)
            tasks = [
                Task(world.name, rng.getrandbits(60), n % 2, rng.choice(OPPONENTS), "train")
                for n in range(count // 20)
            ]
            played = play_groups(setup, [[task] for task in tasks], rng.getrandbits(60))
            found += [samples_of(chat, meta) for meta in played]
    return found


def transcripts(metas: list[list[Sample]], chat: Chat) -> list[list[Sample]]:
    """The last turn of every meta-episode with its whole prompt; the system message is given."""
    system = system_text(RockPaperScissors())
    openings = zip(chat.first(system, "1"), chat.first(system, "x"), strict=False)
    given = next(place for place, (a, b) in enumerate(openings) if a != b)
    found = []
    for meta in metas:
        text = meta[-1].prompt_ids + meta[-1].reply_ids
        rest = text[given:]
        zeros = (0.0,) * len(rest)
        found.append(
            [replace(meta[-1], prompt_ids=text[:given], reply_ids=rest, old_logprobs=zeros)]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reading", type=int, default=450, help="steps of the first stage")
    parser.add_argument("--steps", type=int, default=30, help="steps of the second stage")
    parser.add_argument("--texts", type=int, default=64, help="transcripts a step, first stage")
    parser.add_argument("--batch", type=int, default=8, help="meta-episodes a step, second stage")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=1200, help="meta-episodes in all")
    parser.add_argument("--vocabulary", type=int, default=400)
    shape_names = ("HIDDEN", "LAYERS", "HEADS", "KV", "FF")
    parser.add_argument(
        "--shape", type=int, nargs=5, default=(64, 2, 2, 2, 128), metavar=shape_names
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    start = bootstrap_chat()
    rows = [sample for meta in collect(start, 400, args.seed + 1) for sample in meta]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    tokenizer = train_tokenizer([re.sub(r"<[^>]*>", "\n", text) for text in texts], args.vocabulary)
    chat = finish_tokenizer(tokenizer, PHRASES, TEMPLATE)
    metas = collect(chat, args.count, args.seed)
    model = build_model(Shape(*args.shape), tokenizer.get_vocab_size(), chat)
    print(
        f"{len(metas)} meta-episodes, {tokenizer.get_vocab_size()} tokens, "
        f"{model.num_parameters():,} parameters",
        flush=True,
    )
    read = transcripts(collect(chat, 4 * args.count, args.seed + 2, ("history",)), chat)
    supervise(model, [read], args.reading, args.texts, args.lr, args.seed)
    supervise(model, [metas], args.steps, args.batch, args.lr / 3, args.seed)
    save(model, tokenizer, args.out, TEMPLATE)


if __name__ == "__main__":
    main()
