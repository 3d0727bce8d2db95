"""Make the embedded model: a tiny Llama that knows only the words and answer format of two games.

It is trained on scripted play through the real prompts: uniformly random legal moves, and notes
with a random choice of facts. So skill and adaptation come from reinforcement learning alone.

    python scripts/make_embedded.py --out mage/models/shipped/embedded    # 10 minutes on 2 cores
"""

import argparse
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.learn.imitate.supervised import imitate
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.seeds import derive
from mage.types import MetaEpisode, Request, Sample, Task, TurnRef

SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<action>", "</action>", "<think>", "</think>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPPONENTS = {
    "kuhn_poker": ("random", "conservative", "aggressive", "intermediate"),
    "tic_tac_toe": (
        "random",
        "pattern-0",
        "pattern-2",
        "pattern-5",
        "biased-centre-2",
        "biased-corner-2",
    ),
}
WORLDS: dict[str, Environment] = {"kuhn_poker": KuhnPoker(), "tic_tac_toe": TicTacToe()}


def scripted_reply(chat: Chat, rng: random.Random, request: Request) -> str:
    """A random legal move, or a note of facts if the last message asks for a note."""
    last = chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False).rsplit(
        "<|user|>", 1
    )[1]
    if "Write a short note" in last:
        return factual_note(last, rng)
    if rng.random() < 0.02:
        return (
            "<action>?</action>"  # not a training target, but the reply to it is then in the texts
        )
    free = re.search(r"Free: ([\d ]+)\.", last)
    move = rng.choice(free[1].split()) if free else rng.choice(("pass", "bet"))
    return f"<action>{move}</action>"


def factual_note(message: str, rng: random.Random) -> str:
    """At least one fact of a finished game, in random order."""
    facts = _kuhn_facts(message) if "Your card" in message else _board_facts(message)
    if not facts:
        return "I gave no legal move."
    chosen = rng.sample(facts, rng.randint(1, len(facts)))
    return " ".join(chosen)


def _kuhn_facts(message: str) -> list[str]:
    card, moves, other, result = re.search(
        r"Your card: (\w)\. Moves: (.*?)\. Opponent's card: (\w+)\. You (\w+ \d)", message
    ).groups()  # type: ignore[union-attr]
    return [f"My card: {card}.", f"Moves: {moves}.", f"Opponent's card: {other}.", f"I {result}."]


def _board_facts(message: str) -> list[str]:
    found = re.search(
        r"Your cells in order: ([\w ]+)\. Opponent's cells in order: ([\w ]+)\. (.*?\.)", message
    )
    if found is None:
        return []
    mine, theirs, result = found.groups()
    said = {"You won.": "I won.", "You lost.": "I lost.", "It was a draw.": "It was a draw."}[
        result
    ]
    return [f"My cells in order: {mine}.", f"Opponent's cells in order: {theirs}.", said]


def collect(chat: Chat, world: str, count: int, seed: int) -> list[list[Sample]]:
    """Samples of the legal replies of scripted meta-episodes, for every memory and length."""
    found = []
    for keep in ("none", "reflections", "history", "both"):
        rng = random.Random(derive(seed, world, keep))
        engine = ScriptedEngine(partial(scripted_reply, chat, rng), chat.encode)
        for episodes in (3, 3, 3, 2, 5):
            setup = PlaySetup(
                WORLDS[world],
                Agent(engine, chat, SamplingOptions()),
                Notes(keep=keep),
                episodes=episodes,
            )
            tasks = [
                Task(world, rng.getrandbits(60), n % 2, rng.choice(OPPONENTS[world]), "train")
                for n in range(count // 20)
            ]
            found += [
                samples_of(chat, meta)
                for meta in play_groups(setup, [[task] for task in tasks], rng.getrandbits(60))
            ]
    return found


def samples_of(chat: Chat, meta: MetaEpisode) -> list[Sample]:
    """Every legal reply of a meta-episode. Notes include the end token."""
    samples = []
    for number, episode in enumerate(meta.episodes):
        for index, turn in enumerate((*episode.turns, episode.reflection)):
            if turn is not None and turn.legal:
                reply = turn.completion.token_ids + (chat.end_ids if turn.kind == "reflect" else ())
                where = TurnRef(meta.group, meta.member, number, index, meta.task.opponent)
                samples.append(
                    Sample(turn.prompt_ids, reply, (0.0,) * len(reply), 1.0, (), turn.kind, where)
                )
    return samples


def bootstrap_chat() -> Chat:
    """A byte-level tokenizer without merges, used before the vocabulary is trained."""
    tokenizer = Tokenizer(
        models.BPE(
            vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    return finish_tokenizer(tokenizer)


def finish_tokenizer(
    tokenizer: Tokenizer, phrases: Sequence[str] = (), template: str = TEMPLATE
) -> Chat:
    """Add the tokens of the chat format, and one token for each of `phrases`."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in (*TAGS, *phrases)]
    )
    return Chat(tokenizer, template, {}, (tokenizer.token_to_id("<|end|>"),))


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE: words of the games become single tokens, all other text is bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int


def build_model(shape: Shape, vocabulary: int, chat: Chat, tied: bool = True) -> LlamaForCausalLM:
    """A model with random weights; `tied`: one matrix embeds tokens and gives the logits."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        rope_theta=10_000.0,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=chat.end_ids[0],
        pad_token_id=chat.tokenizer.token_to_id("<|pad|>"),
    )
    return LlamaForCausalLM(config)


def supervise(
    model: LlamaForCausalLM,
    worlds: list[list[list[Sample]]],
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> None:
    """Imitate the replies of `batch` meta-episodes per step.

    Every step uses one environment, so that its rules are computed once.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rng, began = random.Random(seed), time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)
        chosen = [
            [replace(sample, where=replace(sample.where, group=at)) for sample in meta]
            for at, meta in enumerate(rng.sample(worlds[step % len(worlds)], batch))
        ]
        loss = imitate(model, optimizer, [sample for meta in chosen for sample in meta])
        if step % 100 < len(worlds) or step == steps - 1:
            print(f"step {step} loss {loss:.4f} at {time.time() - began:.0f} s", flush=True)


def save(
    model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, template: str = TEMPLATE
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(template)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 2048,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--count", type=int, default=4000, help="meta-episodes per game and memory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vocabulary", type=int, default=640)
    parser.add_argument(
        "--shape",
        type=int,
        nargs=5,
        default=(64, 3, 2, 1, 192),
        metavar=("HIDDEN", "LAYERS", "HEADS", "KV", "FF"),
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    start = bootstrap_chat()
    rows = [
        sample
        for world in WORLDS
        for meta in collect(start, world, 400, args.seed + 1)
        for sample in meta
    ]
    texts = [start.decode(sample.prompt_ids + sample.reply_ids) for sample in rows]
    tokenizer = train_tokenizer([re.sub(r"<[^>]*>", "\n", text) for text in texts], args.vocabulary)
    chat = finish_tokenizer(tokenizer)
    worlds = [collect(chat, world, args.count, args.seed) for world in WORLDS]
    model = build_model(Shape(*args.shape), tokenizer.get_vocab_size(), chat).to(args.device)
    print(
        f"{args.count} meta-episodes per environment, {tokenizer.get_vocab_size()} tokens, "
        f"{model.num_parameters():,} parameters",
        flush=True,
    )
    supervise(model, worlds, args.steps, args.batch, args.lr, args.seed)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
