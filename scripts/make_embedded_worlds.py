"""Make the second embedded model: a tiny Llama for Sokoban and generated ALFWorld rooms.

It is trained on texts of scripted play through the real prompts (`learn/imitate/demonstrations.py`,
as in `mage warmup`): uniformly random legal moves, and notes with a random choice of facts. The
first stage predicts the whole text, observations included; the last stage predicts the replies
alone. The texts contain no skill and only rooms of the training split.

    python scripts/make_embedded_worlds.py --out mage/models/shipped/embedded-worlds \
        --device cuda --processes 11    # three minutes of training on a shared H200
"""

import argparse
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from make_embedded import (
    Shape,
    bootstrap_chat,
    build_model,
    finish_tokenizer,
    save,
    train_tokenizer,
)
from transformers import LlamaForCausalLM

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.sokoban import Sokoban
from mage.learn.imitate.demonstrations import Demonstration, write_demonstrations
from mage.learn.imitate.supervised import imitate
from mage.memory.notes import Notes
from mage.play import PlaySetup
from mage.seeds import derive
from mage.types import Sample, Task

EPISODES = 3
NOTE_TOKENS = 96
_AT_ONCE = 10
_chat: Chat
MEMORIES = ("history", "history", "reflections", "none", "both")  # drawn uniformly from this list


@dataclass(frozen=True, slots=True)
class World:
    """An environment and its relative weight in the texts."""

    environment: Environment
    share: int


def sokoban(**options: object) -> Sokoban:
    return Sokoban.model_validate(
        {
            "size": 6,
            "boxes": (1,),
            "ood_boxes": (2,),
            "shortest": 1,
            "longest": 3,
            "turn_moves": 1,
            "max_turns": 5,
            **options,
        }
    )


def alfworld(**options: object) -> Alfworld:
    return Alfworld.model_validate(
        {
            "task_types": ("place", "light"),
            "receptacles": 3,
            "objects": 2,
            "idle": False,
            "max_turns": 6,
            **options,
        }
    )


WORLDS = {
    "sokoban": (
        World(sokoban(view="words"), 6),
        World(sokoban(view="words", boxes=(2,), shortest=3, longest=8, max_turns=10), 1),
        World(sokoban(), 1),
    ),
    "alfworld": (
        World(alfworld(), 3),
        World(
            alfworld(
                task_types=("clean", "heat", "cool", "two"), receptacles=4, objects=3, max_turns=10
            ),
            1,
        ),
    ),
}


# --- Scripted play --------------------------------------------------------------------------


def collect(
    chat: Chat, world: str, count: int, seed: int, processes: int = 1
) -> list[list[Demonstration]]:
    """Demonstrations of scripted meta-episodes, the same for any number of processes."""
    parts = [(world, seed, part) for part in range(-(-count // _AT_ONCE))]
    with get_context("fork").Pool(processes, initializer=_set_chat, initargs=(chat,)) as pool:
        found = pool.starmap(_collect_part, parts, chunksize=4)
    return [meta for metas in found for meta in metas][:count]


def _set_chat(chat: Chat) -> None:
    """Keep the chat in the process: a chat with a cache cannot be pickled."""
    global _chat
    _chat = chat


def _collect_part(world: str, seed: int, part: int) -> list[list[Demonstration]]:
    chat, rng = _chat, random.Random(derive(seed, world, part))
    chosen = rng.choices(WORLDS[world], [one.share for one in WORLDS[world]])[0].environment
    agent = Agent(
        ScriptedEngine(lambda request: "", chat.encode),
        chat,
        SamplingOptions(max_tokens=400, reflection_tokens=NOTE_TOKENS),
    )
    setup = PlaySetup(chosen, agent, Notes(keep=rng.choice(MEMORIES)), episodes=EPISODES)
    tasks = [Task(world, rng.getrandbits(60), 0, "", "train") for _ in range(_AT_ONCE)]
    demonstrations = write_demonstrations(setup, tasks, rng.getrandbits(60))
    return [
        [demonstration for demonstration in demonstrations if demonstration.where.group == number]
        for number in range(_AT_ONCE)
    ]


def accounts(chat: Chat, meta: Iterable[Demonstration]) -> list[Sample]:
    """Every chat of a meta-episode as one sample, from the end of the rules to its last token."""
    asks = chat.tokenizer.token_to_id("<|user|>")
    longest = {
        (demonstration.where.episode, demonstration.turn.kind): demonstration.sample()
        for demonstration in meta
    }  # the last turn of every episode
    return [_read_from(sample, sample.prompt_ids.index(asks) + 1) for sample in longest.values()]


def _read_from(sample: Sample, start: int) -> Sample:
    ids = sample.prompt_ids + sample.reply_ids
    return replace(
        sample,
        prompt_ids=ids[:start],
        reply_ids=ids[start:],
        old_logprobs=(0.0,) * (len(ids) - start),
        choices=(),
    )


def replies(meta: Iterable[Demonstration]) -> list[Sample]:
    """Every reply of a meta-episode, without observations."""
    return [demonstration.sample() for demonstration in meta]


# --- Training -------------------------------------------------------------------------------


def read(
    model: LlamaForCausalLM,
    pools: dict[str, list[list[Sample]]],
    cycle: Sequence[str],
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> None:
    """Train on `batch` meta-episodes per step.

    Every step uses one environment, in the order of `cycle`, so that its rules are computed once.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    rng, began = random.Random(seed), time.time()
    for step in range(steps):
        world = cycle[step % len(cycle)]
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)
        samples = [
            _numbered(sample, number)
            for number, meta in enumerate(rng.sample(pools[world], batch))
            for sample in meta
        ]
        on_cpu = model.device.type == "cpu"  # packing shares the rules; a GPU is faster without it
        loss = imitate(
            model,
            optimizer,
            samples,
            tree_tokens=512,
            micro_tokens=4096 if on_cpu else 65536,
            packed=on_cpu,
        )
        if step % 50 < len(pools) or step == steps - 1:
            print(f"step {step} {world} loss {loss:.4f} at {time.time() - began:.0f} s", flush=True)


def _numbered(sample: Sample, group: int) -> Sample:
    return replace(sample, where=replace(sample.where, group=group))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, nargs=2, default=(4000, 400), metavar=("ACCOUNTS", "REPLIES")
    )
    parser.add_argument("--batch", type=int, default=16, help="meta-episodes per step")
    parser.add_argument("--count", type=int, default=2500, help="meta-episodes per environment")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="processes that play the scripted games; the texts do not depend on it",
    )
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument(
        "--shape",
        type=int,
        nargs=5,
        default=(96, 3, 3, 3, 256),
        metavar=("HIDDEN", "LAYERS", "HEADS", "KV", "FF"),
    )
    parser.add_argument(
        "--cycle",
        nargs="+",
        choices=list(WORLDS),
        default=list(WORLDS),
        help="environments of the steps, repeated in this order",
    )
    parser.add_argument(
        "--start",
        type=Path,
        help="continue from a model that this script has made",
    )
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    torch.manual_seed(args.seed)
    chat = make_chat(args.vocabulary, args.seed) if args.start is None else Chat.load(args.start)
    model = (
        build_model(Shape(*args.shape), chat.tokenizer.get_vocab_size(), chat)
        if args.start is None
        else LlamaForCausalLM.from_pretrained(args.start)
    )
    metas = {world: collect(chat, world, args.count, args.seed, args.processes) for world in WORLDS}
    print(
        f"{args.count} meta-episodes per environment, {chat.tokenizer.get_vocab_size()} tokens, "
        f"{model.num_parameters():,} parameters",
        flush=True,
    )
    model = model.to(args.device)
    reading, answering = args.steps
    whole = {world: [accounts(chat, meta) for meta in found] for world, found in metas.items()}
    read(model, whole, args.cycle, reading, args.batch, args.lr, args.seed)
    read(
        model,
        {world: [replies(meta) for meta in found] for world, found in metas.items()},
        args.cycle,
        answering,
        args.batch,
        args.lr / 3,
        args.seed + 1,
    )
    save(model, chat.tokenizer, args.out)


def make_chat(vocabulary: int, seed: int) -> Chat:
    """A tokenizer trained on the texts of these environments."""
    start = bootstrap_chat()
    rows = [
        sample
        for world in WORLDS
        for meta in collect(start, world, 150, seed + 1)
        for sample in accounts(start, meta)
    ]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    return finish_tokenizer(
        train_tokenizer([re.sub(r"<[^>]*>", "\n", text) for text in texts], vocabulary)
    )


if __name__ == "__main__":
    main()
