"""The built-in engine against `transformers.generate` at batch 64, on the requests of 64 meta-episodes in play.

`generate` gets its best ordinary use: all prompts are known beforehand, moves and notes are batched apart, sorted by length,
padded on the left outside the timing, sampled at temperature 1, with the end tag as an end token (no stop strings to look for)
and no logprobs asked for. The engine gives logprobs as always, and answers the same requests in three ways:

    in play      64 conversations, each putting its next request when the last is answered, from an empty cache
    batch alone  the very batches of `generate`, one after the other, the cache emptied before each
    no reuse     no prefix cache at all: every token of every prompt is computed, 64 sequences at a time
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.measure import Comparison, relate, take_turns, timed
from benchmarks.workload import make_recipe
from mage.agent import CLOSE
from mage.chat import Chat
from mage.engines.base import Engine, Request, Sampling, run
from mage.engines.local import LocalEngine
from mage.learn.model import load_model
from mage.play import play_meta_episode
from mage.seeds import derive
from mage.trainer import Parts, build, draw_tasks
from mage.types import Completion

CASES = (("kuhn_poker", "reflections"), ("tic_tac_toe", "reflections"))
TARGET = 4.0
Conversation = list[Request]


class Recorder:
    """Stands before an engine in one member's agent and keeps what that member asks."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.policy_version = engine, engine.policy_version
        self.asked: Conversation = []

    def sample(self, request: Request) -> Sampling:
        self.asked.append(request)
        return self.engine.sample(request)


def record(parts: Parts) -> list[Conversation]:
    """What every member of every group asks in the course of its meta-episode."""
    setting, conversations, games = parts.setting(), [], []
    for group, tasks in enumerate(draw_tasks(parts.recipe, 1)):
        for member, task in enumerate(tasks):
            recorder: Any = Recorder(parts.engine)
            conversations.append(recorder.asked)
            own = replace(setting, agent=replace(setting.agent, engine=recorder))
            games.append(play_meta_episode(own, task, group, member, derive("benchmark", group, member)))
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
    """One batch, padded on the left; a reply ends with an end token of the model or with the end tag, where that is one token."""
    width = max(len(request.prompt_ids) for request in requests)
    ids = torch.full((len(requests), width), filler)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        start = width - len(request.prompt_ids)
        ids[row, start:], mask[row, start:] = torch.tensor(request.prompt_ids), 1
    ends = [*chat.end_ids, *(token for stop in requests[0].stop for token in chat.encode(stop))]
    assert requests[0].stop in ((), (CLOSE,)) and len(chat.encode(CLOSE)) == 1, "the end tag is one token of the embedded model"
    return Padded(tuple(requests), ids, mask, requests[0].max_tokens, ends)


def make_batches(conversations: Sequence[Conversation], batch: int, chat: Chat, filler: int) -> list[Padded]:
    """All requests, moves and notes apart, sorted by length."""
    asked = [request for conversation in conversations for request in conversation]
    kinds = ([request for request in asked if request.stop], [request for request in asked if not request.stop])
    ordered = [sorted(kind, key=lambda request: len(request.prompt_ids)) for kind in kinds]
    return [pad(kind[start : start + batch], chat, filler) for kind in ordered for start in range(0, len(kind), batch)]


@torch.inference_mode()
def generate(model: PreTrainedModel, batches: Sequence[Padded]) -> int:
    """Reply tokens made."""
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
        made += int((out[:, batch.input_ids.shape[1] :] != model.generation_config.pad_token_id).sum())
    return made


def answer_in_play(engine: Engine, conversations: Sequence[Conversation]) -> None:
    async def converse(requests: Conversation) -> list[Completion]:
        return [await engine.sample(request) for request in requests]

    engine.refresh(0)
    run(converse(requests) for requests in conversations)


def answer_batches(engine: Engine, batches: Sequence[Padded]) -> None:
    for batch in batches:
        engine.refresh(0)
        answer(engine, batch.requests)


def answer(engine: Engine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.submit(request)
    left = len(requests)
    while left:
        left -= len(engine.step())


def measure(cases: Sequence[tuple[str, str]] = CASES, groups: int = 8, rounds: int = 5) -> list[Comparison]:
    """Replies a second."""
    return [line for game, keep in cases for line in _measure_case(game, keep, groups, rounds)]


def _measure_case(game: str, keep: str, groups: int, rounds: int) -> list[Comparison]:
    parts = build(make_recipe(game, keep, groups))
    conversations = record(parts)
    model = load_model(parts.recipe.model_folder(), parts.recipe.model.dtype, parts.recipe.run.device)
    batches = make_batches(conversations, len(conversations), parts.chat, model.config.pad_token_id)
    replies = sum(map(len, conversations))
    alone = LocalEngine(parts.model, parts.chat, slots=len(conversations), context=1024, prefix_cache=False)
    ways: dict[str, Callable[[], object]] = {
        "in play": lambda: answer_in_play(parts.engine, conversations),
        "batch alone": lambda: answer_batches(parts.engine, batches),
        "no reuse": lambda: answer(alone, [request for batch in batches for request in batch.requests]),
    }
    *ours, theirs = take_turns([timed(way) for way in (*ways.values(), lambda: generate(model, batches))], rounds)
    lines = [
        relate("generate", f"{game}/{case}", ("engine", "generate"), "replies", replies, seconds, theirs) for case, seconds in zip(ways, ours, strict=True)
    ]
    stats = alone.stats
    note = f"{replies} replies of {stats.generated_tokens / (rounds + 1) / replies:.1f} tokens to prompts of {_mean_prompt(conversations):.0f}"
    return [replace(lines[0], note=note, target=TARGET), *lines[1:]]


def _mean_prompt(conversations: Sequence[Conversation]) -> float:
    lengths = [len(request.prompt_ids) for conversation in conversations for request in conversation]
    return sum(lengths) / len(lengths)
