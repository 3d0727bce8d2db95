"""Small objects for tests: a chat, a scripted agent, hand-made meta-episodes."""

from collections.abc import Callable, Iterable
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.base import Environment
from mage.evaluation.figures import Evaluation, summarise_rows
from mage.evaluation.rows import task_row
from mage.opponents.base import Population
from mage.types import Completion, Episode, MetaEpisode, Request, Split, Task, Turn

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def byte_chat() -> Chat:
    """A byte-level tokenizer with the special tokens of a small chat template (shared)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(f"<|{name}|>", special=True, normalized=False)
            for name in ("end", "system", "user", "assistant")
        ]
    )
    return Chat(tokenizer, TEMPLATE, {}, (tokenizer.token_to_id("<|end|>"),))


def summarise(
    metas: Iterable[MetaEpisode], world: Environment, population: Population, split: Split
) -> Evaluation:
    """The figures of played meta-episodes."""
    return summarise_rows([task_row(one) for one in metas], world, population, split)


def scripted_agent(
    reply: Callable[[str], str],
    chat: Chat | None = None,
    batch: int | None = None,
    seen: list[str] | None = None,
) -> Agent:
    """An agent whose model is a function of the prompt's text; prompts are collected in `seen`."""
    chat = chat or byte_chat()

    def answer(request: Request) -> str:
        prompt = chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        if seen is not None:
            seen.append(prompt)
        return reply(prompt)

    return Agent(
        ScriptedEngine(answer, chat.encode, batch),
        chat,
        SamplingOptions(max_tokens=200, reflection_tokens=200),
    )


def turn(anchor: str = "s", reward: float = 0.0, kind: str = "play") -> Turn:
    return Turn(
        kind, anchor, "", (1,), Completion((2,), (-0.5,), "x", "stop", 0), "x", (), True, reward
    )  # type: ignore[arg-type]


def episode(
    reward: float,
    anchors: tuple[str, ...] = ("a", "b", "c"),
    reflection: Turn | None = None,
    costs: tuple[float, ...] | None = None,
) -> Episode:
    costs = costs or (0.0,) * len(anchors)
    turns = tuple(turn(anchor, cost) for anchor, cost in zip(anchors, costs, strict=True))
    outcome = "won" if reward > 0 else "lost" if reward < 0 else "drawn"
    return Episode(turns, reflection, (), reward / 10, reward, outcome, "finished", "")


def meta(
    rewards: tuple[float, ...],
    member: int = 0,
    group: int = 0,
    anchors: tuple[str, ...] = ("a", "b", "c"),
    opponent: str = "o",
) -> MetaEpisode:
    """A meta-episode with these rewards, the same anchors in every episode, and reflections."""
    episodes = tuple(
        episode(reward, anchors, turn("reflection", kind="reflect") if n else None)
        for n, reward in enumerate(rewards)
    )
    return MetaEpisode(
        Task("e", 0, 0, opponent, "train"), group, member, episodes, ("",) * len(episodes), 0
    )
