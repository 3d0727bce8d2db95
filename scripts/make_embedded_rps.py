"""Make the third embedded model: a tiny Llama for rock-paper-scissors.

It is trained on scripted play through the real prompts: uniformly random throws, and notes that
state plain facts of the finished game. It learns the words and the answer format. It learns no
skill: all adaptation to an opponent comes from reinforcement learning.

    python scripts/make_embedded_rps.py --out mage/models/shipped/embedded-rps

The script takes a few minutes on two cores.
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

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.memory.notes import Notes
from mage.play import Setting, play_groups
from mage.seeds import derive
from mage.types import Request, Sample, Task

OPPONENTS = ("random", "dirichlet-0.5", "dirichlet-1", "markov-0.5", "reactive-0.5")
LENGTHS = ((3, 3), (3, 3), (3, 3), (5, 3), (2, 4))  # throws of a game, games


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


def collect(chat: Chat, count: int, seed: int) -> list[list[Sample]]:
    """Scripted meta-episodes under every memory, each as the samples of its legal replies."""
    found = []
    for keep in ("none", "reflections", "history", "both"):
        rng = random.Random(derive(seed, "rock_paper_scissors", keep))
        engine = ScriptedEngine(partial(scripted_reply, chat, rng), chat.encode)
        agent = Agent(engine, chat, SamplingOptions())
        for throws, episodes in LENGTHS:
            world = RockPaperScissors(throws=throws, max_turns=2 * throws)
            setting = Setting(world, agent, Notes(keep=keep), episodes=episodes)
            tasks = [
                Task(world.name, rng.getrandbits(60), n % 2, rng.choice(OPPONENTS), "train")
                for n in range(count // 20)
            ]
            played = play_groups(setting, [[task] for task in tasks], rng.getrandbits(60))
            found += [samples_of(chat, meta) for meta in played]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32, help="meta-episodes a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=4000, help="meta-episodes in all")
    parser.add_argument("--vocabulary", type=int, default=400)
    shape_names = ("HIDDEN", "LAYERS", "HEADS", "KV", "FF")
    parser.add_argument(
        "--shape", type=int, nargs=5, default=(64, 3, 2, 2, 128), metavar=shape_names
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    start = bootstrap_chat()
    rows = [sample for meta in collect(start, 400, args.seed + 1) for sample in meta]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    tokenizer = train_tokenizer([re.sub(r"<[^>]*>", "\n", text) for text in texts], args.vocabulary)
    chat = finish_tokenizer(tokenizer)
    metas = collect(chat, args.count, args.seed)
    model = build_model(Shape(*args.shape), tokenizer.get_vocab_size(), chat)
    print(
        f"{len(metas)} meta-episodes, {tokenizer.get_vocab_size()} tokens, "
        f"{model.num_parameters():,} parameters",
        flush=True,
    )
    supervise(model, [metas], args.steps, args.batch, args.lr, args.seed)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
