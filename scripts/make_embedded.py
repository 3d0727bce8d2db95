"""Make an embedded model: a tiny Llama that knows the words and the answer format of its games.

    python scripts/make_embedded.py embedded-rps --out mage/models/shipped/embedded-rps

`MODELS` has the settings of all six. They are trained on scripted play through the real prompts:
uniformly random legal moves, and notes with a random choice of facts. Some first read whole texts,
observations included, as a language model reads text; the last stage learns the replies alone. The
texts show no skill, so play and adaptation come from reinforcement learning alone.

embedded           Kuhn poker and Tic-Tac-Toe; 13 minutes on two cores.
embedded-worlds    Sokoban and generated ALFWorld rooms of the training split; three minutes on a
                   shared H200 (--device cuda).
embedded-rps       Rock-paper-scissors. After six equal throws of a player it gives this throw a
                   probability of .53 to .72. No text has a player of dirichlet-0.5, the demo's.
embedded-roshambo  Long games with the summary of predictors, 20 s. One layer: a vote of words needs
                   no more. Last loss .378; random throws in the right format have ln(3) / 3 = .366.
embedded-kuhn      Kuhn poker with the record of earlier hands, 45 s. Last loss .2307, random moves
                   have ln(2) / 3 = .2310. With a third of the steps training broke the format.
embedded-doors     Doors with the record of earlier episodes, 40 s. Random moves: a door in four of
                   five choices, whatever the safe box pays.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from mage.agent.agent import Agent, SamplingOptions, system_text
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.doors import Doors
from mage.environments.kuhn_poker import CARDS, KuhnPoker
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.environments.sokoban import Sokoban
from mage.environments.tic_tac_toe import TicTacToe
from mage.learn.imitate.demonstrations import write_demonstrations
from mage.learn.imitate.supervised import imitate
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.seeds import derive
from mage.types import MetaEpisode, Request, Sample, Task, TurnRef

Keep = Literal["none", "reflections", "history", "both"]
Meta = list[Sample]  # the samples of one meta-episode
ALL: tuple[Keep, ...] = ("none", "reflections", "history", "both")
SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<action>", "</action>", "<think>", "</think>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Only a reply needs an end token: the next role ends every other message.
SHORT_TEMPLATE = TEMPLATE.replace(
    "<|end|>", "{% if message['role'] == 'assistant' %}<|end|>{% endif %}"
)


# --- Scripted play ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Game:
    """A game of scripted play: opponents, memories, and `lengths`, worlds and their episodes.

    `slips` is the share of replies without a legal move. They are not learned from; the message
    after one becomes a known text. An empty `name` draws everything from the seed itself.
    """

    name: str
    moves: tuple[str, ...]
    opponents: tuple[str, ...]
    lengths: tuple[tuple[Environment, int], ...]
    memories: tuple[Keep, ...] = ALL
    slips: float = 0.02
    window: int | None = None

    def collect(self, chat: Chat, count: int, seed: int) -> list[Meta]:
        """About `count` meta-episodes, equally many for every memory and length."""
        found: list[Meta] = []
        for keep in self.memories:
            rng = random.Random(derive(seed, self.name, keep) if self.name else seed)
            engine = ScriptedEngine(partial(self._reply, chat, rng), chat.encode)
            agent = Agent(engine, chat, SamplingOptions(), window=self.window)
            for world, episodes in self.lengths:
                numbered = episodes > 1 or bool(self.name)
                setting = PlaySetup(world, agent, Notes(keep=keep), episodes, numbered)
                size = count // (len(self.memories) * len(self.lengths))
                tasks = [[self._task(world, rng, number)] for number in range(size)]
                played = play_groups(setting, tasks, rng.getrandbits(60))
                found += [_replies(chat, meta) for meta in played]
        return found

    def _task(self, world: Environment, rng: random.Random, number: int) -> Task:
        seed = rng.getrandbits(60)
        name = rng.choice(self.opponents) if len(self.opponents) > 1 else self.opponents[0]
        return Task(world.name, seed, number % world.seats, name, "train")

    def _reply(self, chat: Chat, rng: random.Random, request: Request) -> str:
        """A random legal move, or a note of facts if the last message asks for a note."""
        text = chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        last = text.rsplit("<|user|>", 1)[1]
        if "Write a short note" in last:
            facts = _facts(last)
            chosen = rng.sample(facts, rng.randint(1, len(facts))) if facts else []
            return " ".join(chosen) or "I gave no legal move."
        if rng.random() < self.slips:
            return "<action>?</action>"
        free = re.search(r"Free: ([\d ]+)\.", last)
        return f"<action>{rng.choice(free[1].split() if free else self.moves)}</action>"


def _facts(message: str) -> list[str]:
    """What can be said about a finished game of cards, cells or throws."""
    cards = r"Your card: (\w)\. Moves: (.*?)\. Opponent's card: (\w+)\. You (\w+ \d)"
    if hand := re.search(cards, message):
        names = ("My card:", "Moves:", "Opponent's card:", "I")
        return [f"{name} {fact}." for name, fact in zip(names, hand.groups(), strict=True)]
    cells = r"Your cells in order: ([\w ]+)\. Opponent's cells in order: ([\w ]+)\. (.*?\.)"
    if board := re.search(cells, message):
        mine, theirs, result = board.groups()
        said = (f"My cells in order: {mine}.", f"Opponent's cells in order: {theirs}.")
        return [*said, result.replace("You", "I")]
    rounds = re.findall(r"(rock|paper|scissors)-(rock|paper|scissors)", message)
    score = re.search(r"Score ([+-]\d+)", message)
    if not rounds or score is None:
        return []
    mine, theirs = (", ".join(throws) for throws in zip(*rounds, strict=True))
    return [f"Opponent: {theirs}.", f"I: {mine}.", f"Score {score[1]}."]


def _replies(chat: Chat, meta: MetaEpisode) -> Meta:
    """Every legal reply of a meta-episode. Notes include the end token."""
    samples = []
    for number, episode in enumerate(meta.episodes):
        for index, turn in enumerate((*episode.turns, episode.reflection)):
            if turn is not None and turn.legal:
                ids = turn.completion.token_ids + (chat.end_ids if turn.kind == "reflect" else ())
                where = TurnRef(meta.group, meta.member, number, index, meta.task.opponent)
                samples.append(
                    Sample(turn.prompt_ids, ids, (0.0,) * len(ids), 1.0, (), turn.kind, where)
                )
    return samples


@dataclass(frozen=True)
class Rooms:
    """A world of scripted play: its environment with several options and their shares."""

    kind: type[Environment]
    shares: tuple[int, ...]
    options: tuple[dict[str, Any], ...]
    memories: tuple[Keep, ...] = ("history", "history", "reflections", "none", "both")

    def collect(self, chat: Chat, count: int, seed: int) -> list[Meta]:
        """`count` meta-episodes, in blocks of ten that share a variant and a memory."""
        name = self.kind.name
        blocks = [self._block(chat, derive(seed, name, k)) for k in range(-(-count // 10))]
        return [meta for block in blocks for meta in block][:count]

    def _block(self, chat: Chat, seed: int) -> list[Meta]:
        rng = random.Random(seed)
        world = self.kind.model_validate(rng.choices(self.options, self.shares)[0])
        sampling = SamplingOptions(max_tokens=400, reflection_tokens=96)
        agent = Agent(ScriptedEngine(lambda request: "", chat.encode), chat, sampling)
        setting = PlaySetup(world, agent, Notes(keep=rng.choice(self.memories)), episodes=3)
        tasks = [Task(world.name, rng.getrandbits(60), 0, "", "train") for _ in range(10)]
        shown = write_demonstrations(setting, tasks, rng.getrandbits(60))
        return [[one.sample() for one in shown if one.where.group == k] for k in range(10)]


# --- Texts --------------------------------------------------------------------------------------


def whole_episodes(chat: Chat, meta: Meta) -> Meta:
    """Every chat of a meta-episode as one sample, from the end of the rules to its last token."""
    longest = {(sample.where.episode, sample.kind): sample for sample in meta}
    asks = chat.tokenizer.token_to_id("<|user|>")
    return [_read_from(one, one.prompt_ids.index(asks) + 1) for one in longest.values()]


def whole_record(chat: Chat, meta: Meta) -> Meta:
    """The last turn of a meta-episode with its whole prompt; the system message is given."""
    system = system_text(RockPaperScissors())
    openings = zip(chat.first(system, "1"), chat.first(system, "x"), strict=False)
    return [_read_from(meta[-1], next(at for at, (a, b) in enumerate(openings) if a != b))]


def replies(chat: Chat, meta: Meta) -> Meta:
    return meta


def _read_from(sample: Sample, start: int) -> Sample:
    """The same text, of which all tokens from `start` on are learned."""
    ids = sample.prompt_ids + sample.reply_ids
    logprobs = (0.0,) * (len(ids) - start)
    given, read = ids[:start], ids[start:]
    return replace(sample, prompt_ids=given, reply_ids=read, old_logprobs=logprobs, choices=())


# --- The models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """`steps` optimizer steps on `batch` meta-episodes each, of which `read` makes the samples.

    `memories` and `later` (added to the seed of play) are for a stage with texts of its own.
    """

    steps: int
    batch: int
    read: Callable[[Chat, Meta], Meta] = replies
    rate: float = 3e-3
    shuffle: int = 0  # added to the seed that draws the batches
    memories: tuple[Keep, ...] | None = None
    later: int = 0


@dataclass(frozen=True)
class Model:
    """`shape` is width, layers, heads, key-value heads and feed-forward width.

    `phrases` become tokens of their own, and `unread` is a pattern of text from which the tokenizer
    learns no words. With a tied matrix, words that are never a reply are pushed in one direction,
    so that a small model cannot tell the words of an observation apart.
    """

    games: tuple[Game | Rooms, ...]
    shape: tuple[int, int, int, int, int]
    count: int
    stages: tuple[Stage, ...]
    texts: int = 400
    vocabulary: int = 400
    phrases: tuple[str, ...] = ()
    template: str = TEMPLATE
    unread: str = r"$^"
    tied: bool = True
    one_thread: bool = True
    long: bool = False  # the tokenizer reads whole episodes, and training packs them


ROOM = {"size": 6, "boxes": (1,), "ood_boxes": (2,), "shortest": 1, "longest": 3}
ROOM |= {"turn_moves": 1, "max_turns": 5}
WORDS = ROOM | {"view": "words"}
TWO_BOXES = {"boxes": (2,), "shortest": 3, "longest": 8, "max_turns": 10}
FLAT = {"task_types": ("place", "light"), "receptacles": 3, "objects": 2, "max_turns": 6}
FLAT |= {"idle": False}
OTHERS = {"task_types": ("clean", "heat", "cool", "two"), "receptacles": 4, "objects": 3}
KUHN, BOARD = KuhnPoker(), TicTacToe()
LONG = RockPaperScissors(throws=10, summary="predictors")
ROUNDS = tuple(f"{own}-{other}" for own, other in product(THROWS, THROWS))
# The moves of a hand of Kuhn poker as each seat reads them: open, given up, and with a showdown.
OPEN = ("none", "opponent pass", "opponent bet", "you pass, opponent bet")
FOLDED = (
    "you pass, opponent bet, you pass", "you bet, opponent pass",
    "opponent pass, you bet, opponent pass", "opponent bet, you pass",
)  # fmt: skip
SHOWN = (
    "you pass, opponent pass", "you pass, opponent bet, you bet", "you bet, opponent bet",
    "opponent pass, you pass", "opponent pass, you bet, opponent bet", "opponent bet, you bet",
)  # fmt: skip
KUHN_PHRASES = (
    *system_text(KUHN).split("\n"),
    *(f"{KUHN.instance(seat)}\n" for seat in range(2)),
    "Game 1 of 1. ",
    *(f"Game {game} of 3. " for game in range(1, 4)),
    *(f"Your card: {card}. Moves: {moves}." for card, moves in product(CARDS, OPEN)),
    *(f"Game {game}: " for game in range(1, 4)),
    *(f"Your card: {card}. " for card in CARDS),
    *(f"Moves: {moves}. Opponent's card: hidden. " for moves in FOLDED),
    *(f"Moves: {moves}. Opponent's card: {card}. " for moves, card in product(SHOWN, CARDS)),
    *(f"You {end} {chips}.\n" for end, chips in product(("won", "lost"), ("1 chip", "2 chips"))),
)
RPS_PHRASES = (
    *system_text(RockPaperScissors()).split("\n"),
    *ROUNDS,
    ", ",
    "3 throws a game.\n",
    "Game 1 of 1. Throw 1.",
    *(f"Game {game} of 3. Throw 1." for game in range(1, 4)),
    *(f". Throw {throw}." for throw in range(1, 6)),
    *(f"Game {game}: " for game in range(1, 5)),
    *(f". Score {score:+d}.\n" for score in range(-5, 6)),
)
LONG_PHRASES = (
    *system_text(LONG).split("\n"),
    f"{LONG.instance(0)}\nGame 1 of 1. ",
    *(f"{pair}. " for pair in ROUNDS),
    "Predictors:",
    " -",
    *(f" {throw}{digit}" for throw, digit in product(THROWS, range(7))),
)
# Payoffs of the safe box that are one token: 0, 0.005, ..., 1.
PAYOFFS = tuple(f"{number / 200:g}" for number in range(201))
DOORS = Doors(safe=tuple(map(float, PAYOFFS)))
DOORS_PHRASES = (
    *system_text(DOORS).split("\n"),
    *(f"{Doors(choices=count).instance(0)}\n" for count in (1, 2, 3)),
    *(f"Game {game} of {count}. " for count in (1, 3, 10) for game in range(1, count + 1)),
    *(f"Game {game}: " for game in range(1, 11)),
    *(f"Door {door} paid {pays}" for door in range(1, 5) for pays in (0, 1)),
    *(f"The safe box {does} {pays}" for does in ("pays", "paid") for pays in PAYOFFS),
    *(f". Choice {number}." for number in (1, 2, 3)),
    ". ",
    ", ",
    ".\n",
)
STYLES = ("random", "conservative", "aggressive", "intermediate")
BIASED = ("biased-centre-2", "biased-corner-2")
PATTERNS = ("random", "pattern-0", "pattern-2", "pattern-5", *BIASED)
THROWERS = ("random", "dirichlet-0.3", "dirichlet-0.3", "dirichlet-1", "markov-0.5")
BETS = ("pass", "bet")
THREE, FIVE = (RockPaperScissors(throws=n, max_turns=2 * n) for n in (3, 5))
RPS_LENGTHS = (*((THREE, 3),) * 3, (FIVE, 3), (THREE, 1))
MODELS = {
    "embedded": Model(
        (
            Game("kuhn_poker", BETS, STYLES, tuple((KUHN, n) for n in (3, 3, 3, 2, 5))),
            Game("tic_tac_toe", (), PATTERNS, tuple((BOARD, n) for n in (3, 3, 3, 2, 5))),
        ),
        shape=(64, 3, 2, 1, 192),
        count=6000,
        stages=(Stage(4000, 48),),
        vocabulary=640,
        one_thread=False,
    ),
    "embedded-worlds": Model(
        (
            Rooms(Sokoban, (6, 1, 1), (WORDS, WORDS | TWO_BOXES, ROOM)),
            Rooms(Alfworld, (3, 1), (FLAT, FLAT | OTHERS | {"max_turns": 10})),
        ),
        shape=(96, 3, 3, 3, 256),
        count=2500,
        stages=(Stage(4000, 16, whole_episodes), Stage(400, 16, rate=1e-3, shuffle=1)),
        texts=150,
        vocabulary=1024,
        one_thread=False,
        long=True,
    ),
    "embedded-rps": Model(
        (Game("rock_paper_scissors", THROWS, THROWERS, RPS_LENGTHS, slips=0.01),),
        shape=(64, 2, 2, 2, 128),
        count=1200,
        stages=(
            Stage(450, 64, whole_record, memories=("history",), later=2),
            Stage(30, 8, rate=1e-3),
        ),
        phrases=RPS_PHRASES,
        template=SHORT_TEMPLATE,
    ),
    "embedded-roshambo": Model(
        (Game("", THROWS, ("random",), ((LONG, 1),), ("none",), window=0),),
        shape=(64, 1, 4, 4, 128),
        count=200,
        stages=(Stage(200, 2),),
        texts=8,
        phrases=LONG_PHRASES,
        template=SHORT_TEMPLATE,
        unread=r"\w+\d",
        tied=False,
    ),
    "embedded-kuhn": Model(
        (Game("", BETS, ("random",), ((KUHN, 3),), ("history",)),),
        shape=(64, 2, 4, 4, 128),
        count=6000,
        stages=(Stage(600, 16),),
        texts=100,
        phrases=KUHN_PHRASES,
        template=SHORT_TEMPLATE,
        tied=False,
    ),
    "embedded-doors": Model(
        (Game("", DOORS.moves(), ("",), ((DOORS, 3), (DOORS, 3), (DOORS, 10)), ("history",)),),
        shape=(64, 2, 4, 4, 128),
        count=3000,
        stages=(Stage(600, 16),),
        texts=100,
        phrases=DOORS_PHRASES,
        template=SHORT_TEMPLATE,
        tied=False,
    ),
}


# --- Tokenizer and training ---------------------------------------------------------------------


def make_chat(model: Model, seed: int) -> Chat:
    """Byte-level BPE of the games' texts: their words become tokens, other text is bytes."""
    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    start = _finish(Tokenizer(models.BPE(vocab=letters, merges=[])), (), TEMPLATE)
    metas = [meta for game in model.games for meta in game.collect(start, model.texts, seed)]
    read = whole_episodes if model.long else replies
    rows = [one for meta in metas for one in read(start, meta)]
    texts = [start.decode(one.prompt_ids + one.reply_ids) for one in rows]
    words = [re.sub(r"<[^>]*>", "\n", re.sub(model.unread, " ", text)) for text in texts]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=model.vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(words, trainer)
    return _finish(tokenizer, model.phrases, model.template)


def _finish(tokenizer: Tokenizer, phrases: Sequence[str], template: str) -> Chat:
    """Add the tokens of the chat format, and one token for each of `phrases`."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(one, special=True, normalized=False) for one in SPECIAL]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(
        [AddedToken(one, special=False, normalized=False) for one in (*TAGS, *phrases)]
    )
    end = tokenizer.token_to_id("<|end|>")
    assert end is not None, "the tokenizer has no end token"
    return Chat(tokenizer, template, {}, (end,))


def build_network(model: Model, chat: Chat) -> LlamaForCausalLM:
    """The network with random weights."""
    hidden, layers, heads, kv_heads, feed_forward = model.shape
    config = LlamaConfig(
        vocab_size=chat.tokenizer.get_vocab_size(), hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
        intermediate_size=feed_forward, max_position_embeddings=2048,
        tie_word_embeddings=model.tied, rope_theta=10_000.0, initializer_range=0.04,
        bos_token_id=None, eos_token_id=chat.end_ids[0],
        pad_token_id=chat.tokenizer.token_to_id("<|pad|>"),
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(
    network: LlamaForCausalLM, pools: list[list[Meta]], stage: Stage, seed: int, long: bool
) -> None:
    """One stage. Every step uses one pool, so that the rules of its game are computed once."""
    # Packing shares the rules; a GPU is faster without it.
    on_cpu = network.device.type == "cpu"
    packing = {"layout": "forest" if on_cpu else "rows", "micro_tokens": 4096 if on_cpu else 65536}
    sizes: dict[str, Any] = packing if long else {}
    optimizer = torch.optim.AdamW(
        network.parameters(), stage.rate, (0.9, 0.98), weight_decay=0.01, fused=not long or None
    )
    rng, began = random.Random(seed + stage.shuffle), time.time()
    for step in range(stage.steps):
        for group in optimizer.param_groups:
            group["lr"] = stage.rate * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / stage.steps)
        chosen = enumerate(rng.sample(pools[step % len(pools)], stage.batch))
        samples = [
            replace(sample, where=replace(sample.where, group=number))
            for number, meta in chosen
            for sample in meta
        ]
        loss = imitate(network, optimizer, samples, **sizes)
        if step % 50 < len(pools) or step == stage.steps - 1:
            print(f"step {step} loss {loss:.4f} at {time.time() - began:.0f} s", flush=True)


def save(network: LlamaForCausalLM, chat: Chat, model: Model, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(out)
    chat.tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(model.template)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>",
        "pad_token": "<|pad|>", "model_max_length": 2048,
    }  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(model: Model, out: Path, seed: int, device: str) -> None:
    """Make a model and write its folder."""
    torch.manual_seed(seed)
    if model.one_thread:
        torch.set_num_threads(1)
    chat = make_chat(model, seed + 1)
    network = build_network(model, chat).to(device)
    tokens, size = chat.tokenizer.get_vocab_size(), network.num_parameters()
    print(f"{tokens} tokens, {size:,} parameters", flush=True)
    for stage in model.stages:
        games = [_with_memories(game, stage.memories) for game in model.games]
        metas = [game.collect(chat, model.count, seed + stage.later) for game in games]
        pools = [[stage.read(chat, meta) for meta in pool] for pool in metas]
        train(network, pools, stage, seed, model.long)
    save(network, chat, model, out)


def _with_memories(game: Game | Rooms, memories: tuple[Keep, ...] | None) -> Game | Rooms:
    return game if memories is None else replace(game, memories=memories)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, help="meta-episodes of every game")
    parser.add_argument("--steps", type=int, help="optimizer steps of every stage")
    given = parser.parse_args()
    model = MODELS[given.name]
    steps = {} if given.steps is None else {"steps": given.steps}
    stages = tuple(replace(stage, **steps) for stage in model.stages)
    model = replace(model, stages=stages, count=given.count or model.count)
    make(model, given.out, given.seed, given.device)


if __name__ == "__main__":
    main()
