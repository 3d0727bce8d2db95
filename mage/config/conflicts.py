"""Checks that involve more than one config section.

An option without effect is an error if the user gave it. It is left out when a recipe is written.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mage.config.errors import Origin, UserError
from mage.config.menus import find_item, find_object, imports_foreign_code, menu
from mage.config.options import Options
from mage.config.toml import show_key


def find_conflicts(recipe: Options, origin: Origin) -> list[str]:
    """One line for every option that conflicts with other options."""
    unused = [message for effect in _EFFECTS if (message := effect.check(recipe, origin))]
    return [
        *unused,
        *_check_weights(recipe, origin),
        *(origin.mistake(key, attrgetter(key)(recipe), fault) for key, fault in _faults(recipe)),
        *_check_opponents(recipe, origin),
        *_check_rewards(recipe, origin),
    ]


def find_unused(recipe: Options) -> list[tuple[str, str]]:
    """Section and name of every option that has no effect in this recipe, each once."""
    unused = [(effect.section, effect.option) for effect in _EFFECTS if not effect.works(recipe)]
    return list(dict.fromkeys(unused))  # an option may have several conditions


@dataclass(frozen=True, slots=True)
class _Effect:
    """When an option has an effect. Otherwise it is an error; `needs` describes the condition."""

    section: str
    option: str
    needs: str
    works: Callable[[Options], bool]

    def check(self, recipe: Options, origin: Origin) -> str | None:
        section, key = getattr(recipe, self.section), f"{self.section}.{self.option}"
        given = origin.gives(key) if origin.resolved else self.option in section.model_fields_set
        value = getattr(section, self.option)
        if not given or value == {} or self.works(recipe):  # an empty table takes an option away
            return None
        return origin.without_effect(key, value, self.needs)


def _samples_at_random(recipe: Options) -> bool:
    return recipe.evaluation_sampler().temperature > 0


def _multi_agent(recipe: Options) -> bool:
    return any(world.multi_agent for world in _worlds(recipe))


def _worlds(recipe: Options) -> list[Any]:
    """The environment, or the worlds of a mix: an option works if it does in one of them."""
    return list(recipe.environment().inside().values())


def _offers_tools(recipe: Options) -> bool:
    return any(world.tools() for world in _worlds(recipe))


_SINGLE_AGENT = "in an environment without opponents"
_PUBLISHED = 'with agent.prompts = "published"'
_RANDOM = 'with warmup.play = "random"'
_NO_REFLECTIONS = "with a memory that asks for no reflections"
# Section and options, what takes away their effect, and whether they have one.
_RULES: tuple[tuple[str, str, Callable[[Options], bool]], ...] = (
    (
        "warmup.noise own_steps own_labels processes repeat_wins copies",
        _RANDOM,
        lambda r: r.warmup.play == "expert",
    ),
    ("warmup.own_labels", "while warmup.own_steps = 0", lambda r: r.warmup.own_steps > 0),
    ("warmup.own_labels", "with play.episodes = 1", lambda r: r.play.episodes > 1),
    (
        "warmup.repeat_wins",
        'with environments.restart = "fresh"',
        lambda r: any(world.restart == "same" for world in _worlds(r)),
    ),
    ("warmup.copies", "while warmup.repeat_wins = false", lambda r: r.warmup.repeat_wins),
    ("run.keep_transcripts", "while run.episodes_every = 0", lambda r: r.run.episodes_every > 0),
    ("agent.fold think_first example past_turns", _PUBLISHED, lambda r: r.agent.prompts == "chat"),
    (
        "agent.tool_calls tool_seconds tool_characters",
        "in environments without tools",
        _offers_tools,
    ),
    (
        "agent.tool_seconds tool_characters",
        "with agent.tool_calls = 0",
        lambda r: r.agent.tool_calls > 0,
    ),
    ("agent.window fold", "with agent.past_turns = false", lambda r: r.agent.past_turns),
    ("agent.reflection_tokens", _NO_REFLECTIONS, lambda r: r.memory().reflects),
    ("returns.weights", 'unless returns.kind = "final"', lambda r: r.returns.kind == "final"),
    (
        "returns.own_difference",
        'unless returns.kind = "differential"',
        lambda r: r.returns.kind == "differential",
    ),
    (
        "returns.episode_discount",
        'with returns.kind = "single", "final" or "balanced"',
        lambda r: r.returns.kind in ("differential", "cumulative"),
    ),
    ("returns.propagation", 'with returns.kind = "single"', lambda r: r.returns.kind != "single"),
    (
        "returns.per_turn",
        "in environments that score an episode at its end only",
        lambda r: not r.returns.per_turn or any(one.scores_every_turn for one in _worlds(r)),
    ),
    (
        "learn.entropy_final",
        "while learn.entropy = 0",
        lambda r: r.learn.entropy > 0 or r.learn.entropy_final == 0,
    ),
    (
        "learn.minibatches",
        "together with learn.minibatch_rows",
        lambda r: r.learn.minibatch_rows is None,
    ),
    (
        "learn.reflect_from",
        _NO_REFLECTIONS,
        lambda r: r.memory().reflects or r.learn.reflect_from == 0,
    ),
    ("learn.tree_tokens", "while learn.packed = false", lambda r: r.learn.packed),
    (
        "play.stop_on_success",
        "with play.episodes = 1",
        lambda r: r.play.episodes > 1 or not r.play.stop_on_success,
    ),
    ("play.seats grouping", _SINGLE_AGENT, _multi_agent),
    ("evaluate.seats ood_seats", _SINGLE_AGENT, _multi_agent),
    ("opponents.train test ood", _SINGLE_AGENT, _multi_agent),
    (
        "evaluate.top_p",
        "with evaluate.temperature = 0",
        lambda r: _samples_at_random(r) or r.evaluate.top_p == 1,
    ),
    (
        "evaluate.top_k",
        "with evaluate.temperature = 0",
        lambda r: _samples_at_random(r) or r.evaluate.top_k == 0,
    ),
)
_EFFECTS = tuple(
    _Effect(section, option, needs, works)
    for options, needs, works in _RULES
    for section, _, names in [options.partition(".")]
    for option in names.split()
)


def _faults(recipe: Options) -> Iterator[tuple[str, str]]:
    """Option and fault of every option that conflicts with another one."""
    play, weights = recipe.play, recipe.returns.weights
    if recipe.returns.kind == "final" and weights is not None:
        if len(weights) != play.episodes:
            needs = f"play.episodes = {play.episodes} needs {play.episodes} weights"
            yield "returns.weights", f"{needs}, not {len(weights)}"
        elif not any(weights):
            yield "returns.weights", "at least one weight must differ from 0"
    by_group = recipe.run.deal == "groups"
    shared = play.groups if by_group else play.groups * play.members
    if recipe.run.workers > shared:
        told = f"the {shared} {'groups' if by_group else 'meta-episodes'} of an update"
        yield "run.workers", f"more workers than {told} leave some idle"
    if recipe.returns.kind == "balanced" and play.stop_on_success:
        yield (
            "returns.kind",
            "divides by the number of episodes that remain, so play.stop_on_success = true would "
            "pay early wins more: set it to false (part play_on), or use the part sum",
        )
    if recipe.learn.shard == "full" and recipe.learn.lora_rank:
        yield (
            "learn.shard",
            "divides all weights, but learn.lora_rank trains adapters, which are small: use "
            'shard = "none" or lora_rank = 0',
        )
    if recipe.learn.graphs and (fault := _fault_of_graphs(recipe.learn)):
        yield "learn.graphs", fault
    if recipe.evaluate.plays > 1 and recipe.memory().tasks_at_once is not None:
        yield (
            "evaluate.plays",
            "must be 1 with a memory that persists between tasks: in the second play of a task the "
            "memory would already hold the first one",
        )
    no_tools = recipe.agent.prompts != "chat" and recipe.agent.tool_calls > 0
    if no_tools and imports_foreign_code() and _offers_tools(recipe):
        fault = "has no tools, but the environment offers some"
        yield "agent.prompts", f'{fault}: use "chat", or agent.tool_calls = 0'


def _check_weights(recipe: Options, origin: Origin) -> list[str]:
    if recipe.returns.kind != "final" or recipe.returns.weights is not None:
        return []
    return [
        'returns.weights is missing: returns.kind = "final" needs one weight an episode '
        f"({recipe.play.episodes}); {origin.where('returns.weights', 'add it to')}"
    ]


def _check_rewards(recipe: Options, origin: Origin) -> list[str]:
    paths = recipe.play.rewards or {} if imports_foreign_code() else {}
    faults = {path: _reward_fault(path) for path in paths}
    return [origin.mistake("play.rewards", path, fault) for path, fault in faults.items() if fault]


def _reward_fault(path: str) -> str | None:
    try:
        found = find_object(path)
    except UserError as error:
        return str(error)
    return None if callable(found) else "is not a function of an episode"


def _check_opponents(recipe: Options, origin: Origin) -> list[str]:
    games = [world for world in _worlds(recipe) if world.multi_agent]
    if not games:
        return []
    if not recipe.opponents.train:
        where = origin.where("opponents.train", "add it to")
        return [
            f"opponents.train is missing: {_names(games)} needs opponents with their shares; "
            f"{where}"
        ]
    messages = [
        origin.mistake(f"opponents.{split}.{show_key(name)}", share, fault)
        for split, pool in recipe.opponents.model_dump().items()
        for name, share in pool.items()
        if (fault := _opponent_fault(name, share, split, games))
    ]
    splits = recipe.evaluate.splits
    if "ood" in splits and not recipe.opponents.ood:
        fault = "names ood, but opponents.ood is empty"
        messages.append(origin.mistake("evaluate.splits", splits, fault))
    return messages or _check_games(recipe, games, origin)


def _check_games(recipe: Options, games: list[Any], origin: Origin) -> list[str]:
    """Every game of a mix needs an opponent of its own."""
    pools = {"train": recipe.opponents.train}
    if "ood" in recipe.evaluate.splits:
        pools["ood"] = recipe.opponents.ood
    messages = []
    for (split, pool), game in itertools.product(pools.items(), games):
        if not any(_opponent(name).plays(game) for name in pool):
            fault = f"none of them plays {game.name}; opponents for {game.name}: {_fitting(game)}"
            messages.append(origin.mistake(f"opponents.{split}", pool, fault))
    return messages


def _names(games: list[Any]) -> str:
    return ", ".join(game.name for game in games)


def _opponent(name: str) -> Any:
    return find_item("opponents", name.split("-")[0]).named(name)


def _fitting(game: Any) -> str:
    known = sorted(word for word, _ in menu("opponents"))
    return ", ".join(word for word in known if find_item("opponents", word).plays(game))


def _opponent_fault(name: str, share: float, split: str, games: list[Any]) -> str | None:
    if share <= 0:
        return "a share must be greater than 0"
    try:
        opponent = _opponent(name)
    except UserError as error:
        return str(error)
    if opponent.trains_only and split != "train":
        return f"{name} plays in training only: it belongs in opponents.train"
    if any(map(opponent.plays, games)):
        return None
    told = "; ".join(f"opponents for {game.name}: {_fitting(game)}" for game in games)
    return f"{name} does not play {_names(games)}; {told}"


def _fault_of_graphs(learn: Any) -> str | None:
    """Why the layers cannot be recorded as CUDA graphs."""
    if not learn.lora_rank:
        return "is for adapters: set learn.lora_rank, or remove it"
    if learn.recompute:
        return "keeps activations, which learn.recompute = true computes again: remove one"
    return None if learn.packed else "needs learn.packed = true"
