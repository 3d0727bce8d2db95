"""The built-in engine against `transformers.generate` at batch 64, on requests of real play.

Both sides sample at temperature 1 on one thread. Neither tokenises or decodes inside the timing,
except for the engine's stop strings. `generate` has its best conditions: prompts padded on the left
beforehand, moves and notes in separate batches, the end tag as an end token, and no logprobs (which
training needs and the engine computes).

    play / turns      64 conversations from an empty cache; `generate` answers turn by turn
    play / sorted     `generate` knows all prompts beforehand: full batches, sorted by length
    no reuse / sorted the engine without prefix cache: all prompt tokens, 64 sequences at a time
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.measure import Comparison, relate, take_turns, timed
from benchmarks.workload import make_recipe
from mage.agent.agent import CLOSE
from mage.agent.chat import Chat
from mage.engines.base import Engine, PendingSample, run
from mage.engines.local import LocalEngine
from mage.models.base import model_folder
from mage.models.loading import load_model
from mage.play import play_meta_episode
from mage.seeds import derive
from mage.training.build import Components, build_components
from mage.training.tasks import draw_tasks
from mage.types import Completion, Request

CASES = (("kuhn_poker", "reflections"), ("tic_tac_toe", "reflections"))
TARGET = 4.0
Conversation = list[Request]


class Recorder:
    """An engine for one member's agent that records the requests of that member."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.policy_version = engine, engine.policy_version
        self.context = engine.context
        self.asked: Conversation = []

    def sample(self, request: Request) -> PendingSample:
        self.asked.append(request)
        return self.engine.sample(request)


def record(parts: Components) -> list[Conversation]:
    """The requests of every member of every group during its meta-episode."""
    setup, conversations, games = parts.begin_play(), [], []
    for group, tasks in enumerate(draw_tasks(parts.recipe, 1)):
        for member, task in enumerate(tasks):
            recorder: Any = Recorder(parts.engine)
            conversations.append(recorder.asked)
            own = replace(setup, agent=replace(setup.agent, engine=recorder))
            games.append(
                play_meta_episode(own, task, group, member, derive("benchmark", group, member))
            )
    run(games)
    return conversations


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Requests of one kind as `generate` takes them."""

    requests: tuple[Request, ...]
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    max_new_tokens: int
    eos_token_id: list[int]


def pad(requests: Sequence[Request], chat: Chat, filler: int) -> Padded:
    """One batch, padded on the left; a reply ends with an end token or the end tag (one token)."""
    width = max(len(request.prompt_ids) for request in requests)
    ids = torch.full((len(requests), width), filler)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        start = width - len(request.prompt_ids)
        ids[row, start:], mask[row, start:] = torch.tensor(request.prompt_ids), 1
    assert requests[0].stop in ((), (CLOSE,)), (
        "moves end with the end tag, notes with the model's own end"
    )
    tags = [chat.encode(stop) for stop in requests[0].stop]
    assert all(len(tag) == 1 for tag in tags), "the end tag is one token of the embedded model"
    return Padded(
        tuple(requests),
        ids,
        mask,
        requests[0].max_tokens,
        [*chat.end_ids, *(tag[0] for tag in tags)],
    )


def by_turns(conversations: Sequence[Conversation]) -> list[list[Request]]:
    """The first requests of all conversations, then the second ones, ..; moves and notes apart."""
    turns = [
        [request for request in turn if request is not None] for turn in zip_longest(*conversations)
    ]
    return [kind for turn in turns for kind in _kinds(turn)]


def in_order_of_length(conversations: Sequence[Conversation], batch: int) -> list[list[Request]]:
    """All requests in full batches, moves and notes apart, sorted by length."""
    asked = [request for conversation in conversations for request in conversation]
    ordered = [sorted(kind, key=lambda request: len(request.prompt_ids)) for kind in _kinds(asked)]
    return [kind[start : start + batch] for kind in ordered for start in range(0, len(kind), batch)]


def _kinds(requests: Iterable[Request]) -> list[list[Request]]:
    moves_and_notes: tuple[list[Request], list[Request]] = ([], [])
    for request in requests:
        moves_and_notes[not request.stop].append(request)
    return [kind for kind in moves_and_notes if kind]


@torch.inference_mode()
def generate(model: PreTrainedModel, batches: Sequence[Padded]) -> int:
    """Answer the batches one by one; returns the number of generated tokens."""
    made = 0
    for batch in batches:
        out = model.generate(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=batch.max_new_tokens,
            eos_token_id=batch.eos_token_id,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
        made += int(
            (out[:, batch.input_ids.shape[1] :] != model.generation_config.pad_token_id).sum()
        )
    return made


def answer_in_play(engine: Engine, conversations: Sequence[Conversation]) -> None:
    """Conversations in parallel; each sends its next request as soon as it is answered."""

    async def converse(requests: Conversation) -> list[Completion]:
        return [await engine.sample(request) for request in requests]

    engine.refresh(0)
    run(converse(requests) for requests in conversations)


def answer(engine: Engine, requests: Sequence[Request]) -> None:
    """All at once; the engine accepts as many as it has slots."""
    for request in requests:
        engine.submit(request)
    left = len(requests)
    while left:
        left -= len(engine.step())


def measure(
    cases: Sequence[tuple[str, str]] = CASES, groups: int = 8, rounds: int = 3
) -> Iterator[Comparison]:
    """Replies per second."""
    for game, keep in cases:
        yield from _measure_case(game, keep, groups, rounds)


def _measure_case(game: str, keep: str, groups: int, rounds: int) -> list[Comparison]:
    parts = build_components(make_recipe(game, keep, groups))
    conversations = record(parts)
    model = load_model(
        model_folder(parts.recipe), parts.recipe.model.dtype, parts.recipe.run.device
    )
    ordered = in_order_of_length(conversations, len(conversations))
    turns, full = (
        [pad(batch, parts.chat, model.config.pad_token_id) for batch in batches]
        for batches in (by_turns(conversations), ordered)
    )
    uncached = LocalEngine(
        parts.model, parts.chat, slots=len(conversations), context=1024, prefix_cache=False
    )
    ways: dict[str, Callable[[], object]] = {
        "turns": lambda: generate(model, turns),
        "sorted": lambda: generate(model, full),
        "play": lambda: answer_in_play(parts.engine, conversations),
        "no reuse": lambda: answer(uncached, [request for batch in ordered for request in batch]),
    }
    seconds = dict(
        zip(ways, take_turns([timed(way) for way in ways.values()], rounds), strict=True)
    )
    pairs = (("play", "turns"), ("play", "sorted"), ("no reuse", "sorted"))
    replies = sum(map(len, conversations))
    lines = [
        relate(
            "generate",
            f"{game}: {one} / {other}",
            ("engine", "generate"),
            "replies",
            replies,
            seconds[one],
            seconds[other],
        )
        for one, other in pairs
    ]
    length = uncached.stats.generated_tokens / (rounds + 1) / replies
    prompt = _mean_prompt(conversations)
    note = f"{replies} replies of {length:.1f} tokens to prompts of {prompt:.0f}"
    return [
        replace(line, target=TARGET, note=note) if one == "play" else line
        for line, (one, _) in zip(lines, pairs, strict=True)
    ]


def _mean_prompt(conversations: Sequence[Conversation]) -> float:
    lengths = [
        len(request.prompt_ids) for conversation in conversations for request in conversation
    ]
    return sum(lengths) / len(lengths)
