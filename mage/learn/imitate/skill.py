"""How well a model follows the answer format, measured on held-out situations.

A reply that calls a tool follows it too.
Measured are the share of readable answers, the share of legal moves, and the entropy among the
legal moves. Reinforcement learning needs that entropy to explore.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from mage.agent.agent import Agent
from mage.agent.styles import style_of
from mage.config.sections import LearnOptions
from mage.engines.base import run
from mage.environments.base import named
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.scripted import facts_of
from mage.learn.imitate.supervised import action_entropy
from mage.learn.pack.packer import short_layout
from mage.models.architecture import PreTrainedModel
from mage.types import Completion


@dataclass(frozen=True, slots=True)
class Skill:
    """How well a model follows the format. `entropy` is over the legal moves (nats).

    `true_notes` is the share of notes that end by themselves and state only facts of the episode;
    None without notes.
    """

    readable: float
    legal: float
    entropy: float
    true_notes: float | None


def measure(
    model: PreTrainedModel,
    agent: Agent,
    moves: Sequence[Demonstration],
    notes: Sequence[Demonstration],
    learn: LearnOptions,
    tools: bool = False,
) -> Skill:
    """Sample a reply in every situation as in training. Seeds are equal before and after."""
    limit = agent.engine.capacity
    prompts = enumerate(demonstration.turn.prompt_ids for demonstration in moves)
    replies = run((agent.reply(ids, number, tools) for number, ids in prompts), limit=limit)
    calls = [tools and agent.read_call(completion) is not None for completion in replies]
    words = [agent.read(completion) for completion in replies]
    readable = [called or word is not None for called, word in zip(calls, words, strict=True)]
    legal = [
        called or (word is not None and named(word, demonstration.legal) is not None)
        for called, word, demonstration in zip(calls, words, moves, strict=True)
    ]
    prompts = enumerate(demonstration.turn.prompt_ids for demonstration in notes)
    written = run((agent.write(ids, number) for number, ids in prompts), limit=limit)
    true = [
        reply.finish == "eos" and _is_true(agent, reply, demonstration)
        for reply, demonstration in zip(written, notes, strict=True)
    ]
    agent.engine.release()  # what follows computes with the learner's memory
    asked = [demonstration.sample() for demonstration in moves]
    return Skill(
        readable=sum(readable) / len(readable),
        legal=sum(legal) / len(legal),
        entropy=action_entropy(
            model,
            asked,
            temperature=agent.sampling.temperature,
            layout=short_layout(learn),
            micro_tokens=learn.tokens_at_once,
        ),
        true_notes=sum(true) / len(true) if true else None,
    )


def _is_true(agent: Agent, reply: Completion, demonstration: Demonstration) -> bool:
    """Whether a note states at least one fact, and only facts of its episode."""
    is_chat = agent.prompts == "chat"  # there the whole reply is the note
    note = reply.text if is_chat else style_of(agent).read_note(agent, reply) or ""
    said = facts_of(note)
    return bool(said) and set(said) <= set(facts_of(demonstration.turn.observation))


def uniform_entropy(moves: Sequence[Demonstration]) -> float:
    """The entropy of uniformly random legal moves, in nats."""
    return sum(math.log(len(demonstration.legal)) for demonstration in moves) / len(moves)


def blind_share(moves: Sequence[Demonstration]) -> float:
    """How often the move of another situation is legal."""
    shared = [other.turn.action in one.legal for one, other in itertools.permutations(moves, 2)]
    return sum(shared) / len(shared) if shared else 1.0
