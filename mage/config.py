"""One validated tree of options: defaults <- TOML recipe <- `--a.b=c`.

The name of a menu folder is a section, a file in it is a value of `name`, the other keys are that item's own options
(fields of its class, keyword arguments of its function). Items are imported by name only when a recipe asks for them,
so this file stands below all of them. An option without effect is an error, and is left out when a recipe is written.
"""

import ast
import difflib
import importlib
import inspect
import json
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from mage.types import Split

if TYPE_CHECKING:  # for the signatures below; at run time these are found by name
    from mage.engines.base import Engine
    from mage.environments.base import Environment
    from mage.memory.base import Memory
    from mage.opponents.base import Population

PACKAGE = Path(__file__).parent
MENUS = ("environments", "opponents", "memory", "engines", "advantages")
_CONTRACTS = {"environments": "Environment", "memory": "Memory", "engines": "Engine"}
Tables = dict[str, Any]


class ConfigError(ValueError):
    """A user's mistake in a recipe: what was given, what is allowed, where to change it."""


# ---------------------------------------------------------------------------------------------------------- sections


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunOptions(_Section):
    """[run]: how long, how often, where."""

    name: str = Field(
        "", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$", description="the run's folder: letters, digits, _ . -; empty = the recipe's name and a number"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="every random choice of the run is derived from it")
    updates: int = Field(100, ge=0, description="optimizer rounds: play, credit, learn")
    save_every: int = Field(10, ge=1, description="updates between checkpoints")
    keep: int = Field(2, ge=1, description="newest checkpoints kept; the best one is always kept")
    evaluate_every: int = Field(10, ge=0, description="updates between evaluations on the select panel; 0 = only before and after")
    episodes_every: int = Field(10, ge=0, description="updates between stored transcripts; 0 = none")
    workers: int = Field(1, ge=1, le=64, description="processes that share the groups of an update; results depend on their number")
    threads: int = Field(0, ge=0, le=1024, description="torch threads of a worker; 0 = one for a tiny model, else the cores, shared out evenly")
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, mps, cuda or cuda:N")


class ModelOptions(_Section):
    """[model]: the policy's starting weights."""

    path: str = Field("embedded", min_length=1, description="'embedded' for the model that ships with MAGE, or a folder with a transformers checkpoint")
    dtype: Literal["float32", "bfloat16", "auto"] = Field("auto", description="numbers the weights are held in; auto = float32 on CPU, bfloat16 on CUDA")


class OpponentOptions(_Section):
    """[opponents]: name -> share, for every split."""

    train: dict[str, float] = Field({}, description="whom the agent meets in training")
    test: dict[str, float] = Field({}, description="whom it meets in evaluation; empty = as in train")
    ood: dict[str, float] = Field({}, description="opponents it has never trained against")


class PlayOptions(_Section):
    """[play]: the shape of meta-episodes and groups, and the penalties."""

    episodes: int = Field(3, ge=1, le=100, description="episodes in a meta-episode (N)")
    groups: int = Field(16, ge=1, description="tasks an update")
    members: int = Field(8, ge=2, description="meta-episodes of one task (G); a baseline needs at least two")
    seats: Literal["first", "second", "both"] = Field("both", description="where the agent sits; both = half the tasks each")
    stop_on_success: bool = Field(False, description="end a meta-episode at the first win, as the published code does")
    grouping: Literal["stationary", "mixed"] = Field("stationary", description="stationary = members share the opponent; mixed is the ablation")
    illegal_penalty: float = Field(0.5, ge=0, description="taken from the reward of a turn without a legal action")
    length_penalty: float = Field(0.0, ge=0, description="most that is taken from the reward of a reply near its length limit (lambda)")


class AgentOptions(_Section):
    """[agent]: how replies are sampled in training."""

    temperature: float = Field(1.0, gt=0, le=10, description="sampling temperature; loss and logprobs use the same")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling; 1 = off")
    top_k: int = Field(0, ge=0, description="sample among the k most likely tokens; 0 = off")
    max_tokens: int = Field(256, ge=1, description="longest reply with an action")
    reflection_tokens: int = Field(256, ge=1, description="longest reflection")


class Choice(BaseModel):
    """A menu section: the item's name, and the item's own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(min_length=1, description="a file of the menu folder, or a dotted path into another package")

    @property
    def options(self) -> Tables:
        return dict(self.model_extra or {})


class MemoryChoice(Choice):
    name: str = Field("notes", min_length=1, description="what is carried from episode to episode")


class EngineChoice(Choice):
    name: str = Field("local", min_length=1, description="what turns prompts into replies")


class EstimatorChoice(Choice):
    name: str = Field("gigpo", min_length=1, description="how returns become advantages")


class ReturnOptions(_Section):
    """[returns]: what follows a turn, as one number (method page, section 2)."""

    kind: Literal["differential", "cumulative", "single", "final"] = Field("differential", description="the meta-reward")
    step_discount: float = Field(0.95, ge=0, le=1, description="discount from turn to turn in an episode")
    episode_discount: float = Field(0.6, ge=0, le=1, description="discount from episode to episode")
    propagation: Literal["code", "paper"] = Field("code", description="whether the step discount also shrinks what comes from later episodes")
    weights: tuple[float, ...] | None = Field(None, strict=False, description="one weight an episode, with kind = 'final'")


class LearnOptions(_Section):
    """[learn]: the loss and the optimizer (method page, section 5)."""

    lr: float = Field(3e-4, gt=0, le=1, description="learning rate of AdamW")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW's decay of the squared gradient")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's weight decay")
    warmup: int = Field(0, ge=0, description="updates over which the learning rate rises from 0")
    decay: float = Field(1.0, ge=0, le=1, description="fraction of the learning rate reached linearly at the last update; 1 = constant")
    minibatches: int = Field(1, ge=1, description="optimizer steps an epoch")
    epochs: int = Field(1, ge=1, description="passes over an update's samples")
    clip: float = Field(0.2, gt=0, lt=1, description="PPO clip below 1, and above it too unless clip_high is given")
    clip_high: float | None = Field(None, gt=0, description="PPO clip above 1")
    dual_clip: float | None = Field(3.0, gt=1, description="bound on the ratio where the advantage is negative")
    kl: float = Field(0.0, ge=0, description="weight of the KL to the frozen starting model")
    entropy: float = Field(0.0, ge=0, description="weight of the entropy of the action at the start")
    entropy_final: float = Field(0.0, ge=0, description="weight of that entropy at the last update, reached linearly")
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    tree_tokens: int | None = Field(None, ge=1, description="most tokens of one prefix tree; not given = trees are merged while that saves time")
    micro_tokens: int = Field(16384, ge=1, description="tokens computed at once")
    packed: bool = Field(True, description="compute shared prefixes once")
    lora_rank: int = Field(0, ge=0, description="rank of the LoRA adapters; 0 = train all weights")
    lora_alpha: float | None = Field(None, gt=0, description="scale of the LoRA adapters; twice the rank if not given")
    importance_cap: float | None = Field(None, ge=1, description="cap on learner / sampler probability as a weight on the loss; not given = no such weight")

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2

    def lr_at(self, update: int, total: int) -> float:
        """Learning rate of update 0, 1, .. `total` - 1."""
        rise = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, max(0, update - self.warmup) / max(1, total - 1 - self.warmup))
        return self.lr * rise * (1 - (1 - self.decay) * fall)

    def entropy_at(self, update: int, total: int) -> float:
        """Weight of the entropy in update 0, 1, .. `total` - 1."""
        return self.entropy + (self.entropy_final - self.entropy) * min(1.0, update / max(1, total - 1))


class EvaluateOptions(_Section):
    """[evaluate]: the fixed panels and how replies are sampled there."""

    size: int = Field(240, ge=1, description="tasks of the panel that chooses checkpoints")
    final_size: int = Field(1200, ge=1, description="tasks of the panel behind the final figures")
    temperature: float = Field(0.7, ge=0, le=10, description="sampling temperature; 0 = the most likely token")
    top_p: float = Field(0.8, gt=0, le=1, description="nucleus sampling; 1 = off")
    top_k: int = Field(20, ge=0, description="sample among the k most likely tokens; 0 = off")
    episodes: int = Field(0, ge=0, le=100, description="episodes in a meta-episode; 0 = as in play")
    splits: tuple[Split, ...] = Field(("test",), strict=False, min_length=1, description="pools that are evaluated: train, test, ood")


class Recipe(_Section):
    """The whole tree. Made by `load_recipe` and `build_recipe`, which check what no section can see alone."""

    environments: Choice
    run: RunOptions = RunOptions()
    model: ModelOptions = ModelOptions()
    opponents: OpponentOptions = OpponentOptions()
    play: PlayOptions = PlayOptions()
    agent: AgentOptions = AgentOptions()
    memory_choice: MemoryChoice = Field(MemoryChoice(), alias="memory")  # `memory()` gives the item itself
    engines: EngineChoice = EngineChoice()
    returns: ReturnOptions = ReturnOptions()
    advantages: EstimatorChoice = EstimatorChoice()
    learn: LearnOptions = LearnOptions()
    evaluate: EvaluateOptions = EvaluateOptions()

    def environment(self) -> "Environment":
        """The world with its options."""
        return typing.cast("Environment", find_item("environments", self.environments.name).model_validate(self.environments.options))

    def memory(self) -> "Memory":
        """What is carried from episode to episode, with its options."""
        return typing.cast("Memory", find_item("memory", self.memory_choice.name).model_validate(self.memory_choice.options))

    def population(self) -> "Population":
        """The weighted pools of opponents."""
        return typing.cast("Population", importlib.import_module("mage.opponents.base").Population(**self.opponents.model_dump()))

    def estimator(self) -> Callable[..., Any]:
        """`estimate(returns)` of the chosen file with its options filled in."""
        return partial(find_item("advantages", self.advantages.name), **self.advantages.options)

    def engine(self) -> "Callable[..., Engine]":
        """The engine's class with its options filled in and checked. Imports the engine, and with it perhaps torch."""
        item = find_item("engines", self.engines.name)
        options = _check_options("engines", _options_model(item.__init__, required=False), self.engines.options, _NOWHERE)
        return partial(item, **options)

    def model_folder(self) -> Path:
        """The folder of the starting weights."""
        folder = PACKAGE / "embedded" if self.model.path == "embedded" else Path(self.model.path).expanduser()
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path = {_show(self.model.path)}: {folder} has no config.json; {_NOWHERE.where('model.path')}")
        return folder

    def evaluation_episodes(self) -> int:
        """Episodes of a meta-episode in evaluation."""
        return self.evaluate.episodes or self.play.episodes

    def to_dict(self) -> Tables:
        """Every option that has an effect, as plain values; loading it again gives an equal recipe."""
        tables = {field.alias or name: getattr(self, name).model_dump() for name, field in type(self).model_fields.items()}
        for effect in _EFFECTS:
            if not effect.works(self):
                tables[effect.section].pop(effect.option)
        tables["opponents"] = {split: pool for split, pool in tables["opponents"].items() if pool}
        return {name: _without_none(table) for name, table in tables.items() if table}

    def to_toml(self) -> str:
        """`to_dict` as a recipe file."""
        return dump_toml(self.to_dict())

    def changed(self, overrides: Iterable[str]) -> "Recipe":
        """This recipe with overrides on top, as when a finished run is evaluated in another way.

        A resolved recipe names every option, so only the overrides count as given: what they rob of its effect is dropped.
        """
        tables = self.to_dict()
        keys = [_override(tables, text) for text in overrides]
        return build_recipe(tables, _Origin("the run's recipe", tuple(keys), resolved=True))


# ------------------------------------------------------------------------------------------- options without effect


@dataclass(frozen=True, slots=True)
class _Effect:
    """Where an option means something. Given elsewhere it is an error; `needs` says what it takes."""

    section: str
    option: str
    needs: str
    works: Callable[[Recipe], bool]

    def mistake(self, recipe: Recipe, origin: "_Origin") -> str | None:
        section, key = getattr(recipe, self.section), f"{self.section}.{self.option}"
        given = origin.overrides_name(key) if origin.resolved else self.option in section.model_fields_set
        if not given or self.works(recipe):
            return None
        return origin.without_effect(key, getattr(section, self.option), self.needs)


def _samples(recipe: Recipe) -> bool:
    return recipe.evaluate.temperature > 0


def _multi_agent(recipe: Recipe) -> bool:
    return recipe.environment().multi_agent


_SINGLE_AGENT = "in an environment without opponents"
_EFFECTS = (
    _Effect("returns", "weights", 'unless returns.kind = "final"', lambda r: r.returns.kind == "final"),
    _Effect("returns", "episode_discount", 'with returns.kind = "single" or "final"', lambda r: r.returns.kind in ("differential", "cumulative")),
    _Effect("returns", "propagation", 'with returns.kind = "single"', lambda r: r.returns.kind != "single"),
    _Effect("learn", "entropy_final", "while learn.entropy = 0", lambda r: r.learn.entropy > 0 or r.learn.entropy_final == 0),
    _Effect("learn", "lora_alpha", "while learn.lora_rank = 0", lambda r: r.learn.lora_rank > 0),
    _Effect("learn", "tree_tokens", "while learn.packed = false", lambda r: r.learn.packed),
    _Effect("play", "stop_on_success", "with play.episodes = 1", lambda r: r.play.episodes > 1 or not r.play.stop_on_success),
    _Effect("agent", "reflection_tokens", "with a memory that asks for no reflections", lambda r: r.memory().reflects),
    _Effect("play", "seats", _SINGLE_AGENT, _multi_agent),
    _Effect("play", "grouping", _SINGLE_AGENT, _multi_agent),
    _Effect("opponents", "train", _SINGLE_AGENT, _multi_agent),
    _Effect("opponents", "test", _SINGLE_AGENT, _multi_agent),
    _Effect("opponents", "ood", _SINGLE_AGENT, _multi_agent),
    _Effect("evaluate", "top_p", "with evaluate.temperature = 0", lambda r: _samples(r) or r.evaluate.top_p == 1),
    _Effect("evaluate", "top_k", "with evaluate.temperature = 0", lambda r: _samples(r) or r.evaluate.top_k == 0),
)


# ------------------------------------------------------------------------------------------------- making a recipe


def load_recipe(path_or_name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe file, or one of `mage/recipes/` by name, and put the overrides on top.

    >>> load_recipe("demo", ["--play.episodes=2", "--opponents.train={random = 1}"])  # doctest: +SKIP
    """
    path = _locate(str(path_or_name))
    tables = _read_toml(path)
    changed = [_override(tables, text) for text in overrides]
    return build_recipe(tables, _Origin(str(path), tuple(changed)))


def build_recipe(tables: Mapping[str, Any], origin: "_Origin | None" = None) -> Recipe:
    """Check plain tables as a whole recipe and resolve the options of its menu items."""
    origin = origin or _NOWHERE
    try:
        recipe = Recipe.model_validate(dict(tables))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, Recipe, (), origin))) from None
    choices = {name: field.alias or name for name, field in Recipe.model_fields.items() if isinstance(getattr(recipe, name), Choice)}
    recipe = recipe.model_copy(update={name: _resolve(section, getattr(recipe, name), origin) for name, section in choices.items()})
    mistakes = [mistake for effect in _EFFECTS if (mistake := effect.mistake(recipe, origin))]
    mistakes += [*_weight_mistakes(recipe, origin), *_worker_mistakes(recipe, origin), *_opponent_mistakes(recipe, origin)]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return recipe


def _weight_mistakes(recipe: Recipe, origin: "_Origin") -> list[str]:
    if recipe.returns.kind != "final":
        return []
    weights, episodes = recipe.returns.weights, recipe.play.episodes
    if weights is None:
        return [f'returns.weights is missing: returns.kind = "final" needs one weight an episode ({episodes}); {origin.where("returns.weights", "add it to")}']
    if len(weights) != episodes:
        return [origin.mistake("returns.weights", weights, f"play.episodes = {episodes} needs {episodes} weights, not {len(weights)}")]
    return [] if any(weights) else [origin.mistake("returns.weights", weights, "at least one weight must differ from 0")]


def _worker_mistakes(recipe: Recipe, origin: "_Origin") -> list[str]:
    if recipe.run.workers <= recipe.play.groups:
        return []
    return [origin.mistake("run.workers", recipe.run.workers, f"more workers than the {recipe.play.groups} groups of an update leave some idle")]


def _opponent_mistakes(recipe: Recipe, origin: "_Origin") -> list[str]:
    environment = recipe.environment()
    if not environment.multi_agent:
        return []
    if not recipe.opponents.train:
        return [f"opponents.train is missing: {environment.name} needs opponents with their shares; {origin.where('opponents.train', 'add it to')}"]
    mistakes = []
    for split, pool in recipe.opponents.model_dump().items():
        for name, share in pool.items():
            fault = _opponent_fault(name, environment) if share > 0 else "a share must be greater than 0"
            mistakes += [origin.mistake(f"opponents.{split}.{_key(name)}", share, fault)] if fault else []
    if "ood" in recipe.evaluate.splits and not recipe.opponents.ood:
        mistakes.append(origin.mistake("evaluate.splits", recipe.evaluate.splits, "names ood, but opponents.ood is empty"))
    return mistakes


def _opponent_fault(name: str, environment: "Environment") -> str | None:
    base = importlib.import_module("mage.opponents.base")
    try:
        opponent = base.find(name)
    except ValueError as error:
        return f"{error}{_did_you_mean(name.split('-')[0], base.known())}".replace("Input should be", "must be")
    if opponent.plays is None or environment.name in opponent.plays:
        return None
    fitting = sorted(word for word, kind in base.known().items() if kind.plays is None or environment.name in kind.plays)
    return f"{name} plays {', '.join(opponent.plays)}, not {environment.name}; for that there are {', '.join(fitting)}"


def _resolve(section: str, choice: Choice, origin: "_Origin") -> Choice:
    """The choice with all of its item's options, defaults included. An engine is only looked up: importing it is slow."""
    try:
        _check_name(section, choice.name)
        item = None if section == "engines" else find_item(section, choice.name)
    except ConfigError as error:
        raise ConfigError(origin.mistake(f"{section}.name", choice.name, str(error))) from None
    if item is None:
        return choice
    model = item if isinstance(item, type) else _options_model(item, required=True)
    return type(choice).model_validate({"name": choice.name, **_check_options(section, model, choice.options, origin)})


def _check_options(section: str, model: type[BaseModel], options: Tables, origin: "_Origin") -> Tables:
    try:
        return _without_none(model.model_validate(options).model_dump())
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, model, (section,), origin))) from None


def _options_model(function: Callable[..., Any], *, required: bool) -> type[BaseModel]:
    """Keyword-only arguments as a model. An engine's arguments without default come from the trainer, not the recipe."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments = [a for a in inspect.signature(function).parameters.values() if a.kind is a.KEYWORD_ONLY and (required or a.default is not a.empty)]
    fields: dict[str, Any] = {a.name: (hints.get(a.name, Any), ... if a.default is a.empty else a.default) for a in arguments}
    return create_model("Options", __config__=ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False), **fields)


# ---------------------------------------------------------------------------------------------------------- reading


def _locate(name: str) -> Path:
    path = Path(name).expanduser() if name.endswith(".toml") else PACKAGE / "recipes" / f"{name}.toml"
    if path.is_file():
        return path
    known = [title for title, _ in menu("recipes")]
    advice = "check the path" if name.endswith(".toml") else f"mage/recipes/ has {', '.join(known) or 'none'}; a file of your own ends with .toml"
    raise ConfigError(f"there is no recipe {name!r}{_did_you_mean(name, known)}: {advice}")


def _read_toml(path: Path) -> Tables:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _override(tables: Tables, text: str) -> str:
    """Put one `--a.b=c` into the tables and return its key; an empty value takes the key out, back to its default."""
    key, equals, value = text.removeprefix("--").partition("=")
    path = _key_path(key)
    if not equals or len(path) < 2:
        raise ConfigError(f"{text!r} is not an override: write --section.option=value, as in --play.episodes=3")
    table = tables
    for depth, part in enumerate(path[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{text!r}: {'.'.join(path[:depth])} is a value, not a table with options of its own")
    if value:
        table[path[-1]] = _parse_value(value)
    else:
        table.pop(path[-1], None)
    return ".".join(map(_key, path))


def _key_path(key: str) -> list[str]:
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return []
    path = []
    while isinstance(table, dict):
        name, table = next(iter(table.items()))
        path.append(name)
    return path


def _parse_value(text: str) -> Any:
    """A TOML value where it is one, else the text itself: `0.5`, `true`, `[0, 0, 1]`, `kuhn_poker`."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


# ------------------------------------------------------------------------------------------------------------ menus


def menu(folder: str) -> list[tuple[str, str]]:
    """Names and one-line descriptions of a menu, read from the source: nothing is imported.

    >>> [name for name, _ in menu("environments")]
    ['kuhn_poker', 'openspiel', 'tic_tac_toe']
    """
    if folder == "recipes":
        return [(path.stem, _first_line(path.read_text("utf-8").lstrip("# "))) for path in sorted((PACKAGE / folder).glob("*.toml"))]
    if folder not in MENUS:
        raise ConfigError(f"there is no menu {folder!r}{_did_you_mean(folder, [*MENUS, 'recipes'])}: menus are {', '.join(MENUS)} and recipes")
    return [entry for path in _item_files(folder) for entry in _entries(path)]


def find_item(folder: str, name: str) -> Any:
    """The class (for advantages, the function `estimate`) behind a name of a menu or a dotted path.

    `my_lab.nim` is a module that holds one such class, `my_lab.nim.Nim` the class itself. Opponents carry options
    in their names and several share a file, so they have a `find` of their own (opponents/base.py).
    """
    module, attribute = _import_item(folder, name)
    item = _contained(module, folder) if attribute is None else getattr(module, attribute, None)
    if item is None or not _fits(item, folder):
        expected = "function estimate" if folder == "advantages" else f"subclass of mage.{folder}.base.{_CONTRACTS[folder]}"
        raise ConfigError(f"{name}: {module.__name__ if attribute is None else attribute} is or holds no {expected}")
    return item


def _import_item(folder: str, name: str) -> tuple[ModuleType, str | None]:
    """The module, and the attribute in it where the dotted path names one."""
    _check_name(folder, name)
    if "." not in name:
        return _import(f"mage.{folder}.{name}"), None
    parent, _, last = name.rpartition(".")
    outer = _import(parent)
    inner = getattr(outer, last, None)
    return (_import(name), None) if inner is None or isinstance(inner, ModuleType) else (outer, last)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} cannot be imported: {error}; is the package installed, or its folder on PYTHONPATH?") from None


def _contained(module: ModuleType, folder: str) -> Any:
    """The one item a module defines: the class that carries a `name` of its own, if there are several."""
    if folder == "advantages":
        return getattr(module, "estimate", None)
    own = [item for item in vars(module).values() if _fits(item, folder) and item.__module__.startswith(module.__name__)]
    named = [item for item in own if "name" in vars(item)] or own
    if len(named) > 1:
        classes = [item.__name__ for item in named]
        raise ConfigError(f"{module.__name__} holds several items ({', '.join(classes)}): name one, as in {module.__name__}.{classes[0]}")
    return named[0] if named else None


def _fits(item: Any, folder: str) -> bool:
    if folder == "advantages":
        return callable(item)
    return isinstance(item, type) and issubclass(item, getattr(importlib.import_module(f"mage.{folder}.base"), _CONTRACTS[folder]))


def _check_name(folder: str, name: str) -> None:
    known = [path.stem for path in _item_files(folder)]
    if name not in known and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        only = f"only {', '.join(known)}; a dotted path (my_lab.nim) names an item of another package"
        raise ConfigError(f"mage/{folder}/ has no {name!r}{_did_you_mean(name, known)}, {only}")


def _item_files(folder: str) -> list[Path]:
    """Files and packages of a menu, without the contract and what the items share."""
    places = [path for path in sorted((PACKAGE / folder).iterdir()) if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return [path for path in places if path.stem != "base" and not path.stem.startswith("_") and _holds_item(path, folder)]


def _holds_item(path: Path, folder: str) -> bool:
    tree = _parse(path)
    if folder == "advantages":
        return any(isinstance(node, ast.FunctionDef) and node.name == "estimate" for node in tree.body)
    if folder == "engines":
        return any("Engine" in map(ast.unparse, node.bases) for node in tree.body if isinstance(node, ast.ClassDef))
    return True


def _parse(path: Path) -> ast.Module:
    return ast.parse((path / "__init__.py" if path.is_dir() else path).read_text("utf-8"))


def _entries(path: Path) -> list[tuple[str, str]]:
    tree = _parse(path)
    fallback = _first_line(ast.get_docstring(tree))
    classes = [(_class_name(node), _first_line(ast.get_docstring(node)) or fallback) for node in tree.body if isinstance(node, ast.ClassDef)]
    return [(name, line) for name, line in classes if name] or [(path.stem, fallback)]


def _class_name(node: ast.ClassDef) -> str | None:
    """The value of `name: ClassVar[str] = "..."` in a class body."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "name" and isinstance(line.value, ast.Constant):
            return str(line.value.value)
    return None


def _first_line(text: str | None) -> str:
    return text.strip().splitlines()[0].strip() if text and text.strip() else ""


# --------------------------------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where the options came from, so that a message can say where to change one."""

    file: str | None
    overrides: tuple[str, ...] = ()
    resolved: bool = False  # the file names every option, given or not

    def overrides_name(self, key: str) -> bool:
        return any(f"{key}.".startswith(f"{given}.") or f"{given}.".startswith(f"{key}.") for given in self.overrides)

    def where(self, key: str, verb: str = "change it in", command: str | None = "or use --{}=...") -> str:
        section, _, option = key.partition(".")
        if self.overrides_name(key):
            return f"{verb} the command line (--{key})"
        place = f"[{section}]" if option else "the top level"
        return f"{verb} {place} of {self.file or 'the recipe'}" + (f", {command.format(key)}" if option and command else "")

    def mistake(self, key: str, value: Any, fault: str) -> str:
        return f"{key} = {_show(value)}: {fault}; {self.where(key)}"

    def without_effect(self, key: str, value: Any, needs: str) -> str:
        where = self.where(key, "take it out of", "or say --{}= with nothing behind it")
        return f"{key} = {_show(value)}: has no effect {needs}; {where}"


_NOWHERE = _Origin(None)


def _explain(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...], origin: _Origin) -> list[str]:
    """One line for every mistake pydantic found."""
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    # An element that is wrong may make its list wrong too (too short without it); the element says it better.
    return [_explain_one(fault, model, prefix, origin) for fault in faults if fault["loc"] not in inner]


def _explain_one(fault: Any, model: type[BaseModel], prefix: tuple[str, ...], origin: _Origin) -> str:
    path = tuple(part for part in fault["loc"] if isinstance(part, str))
    key = ".".join(map(_key, prefix + path))
    if fault["type"] == "extra_forbidden":
        return _explain_unknown(path, _model_at(model, path[:-1]), prefix, origin)
    if fault["type"] == "missing":
        return f"{key} is missing; {origin.where(key, 'add it to')}"
    text = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be").replace("Input should have", "must have")
    if fault["type"] in ("model_type", "dict_type"):
        text = f"must be a table ([{key}] and its options below)"
    if fault["type"] == "string_pattern_mismatch":
        text = "is not allowed here"
    field = _model_at(model, path[:-1]).model_fields.get(path[-1]) if path else None
    told = f" ({field.description})" if field and field.description else ""
    meant = _did_you_mean(str(fault["input"]), re.findall(r"'([^']*)'", text)) if fault["type"] == "literal_error" else ""
    return origin.mistake(key, fault["input"], f"{text}{meant}{told}")


def _explain_unknown(path: tuple[str, ...], model: type[BaseModel], prefix: tuple[str, ...], origin: _Origin) -> str:
    section, key = ".".join(prefix + path[:-1]), ".".join(map(_key, prefix + path))
    known = [field.alias or name for name, field in model.model_fields.items()]
    if not section:
        return f"[{key}] is unknown{_did_you_mean(key, known)}: sections are {', '.join(known)}; {origin.where(key, 'correct it in', None)}"
    return f"{key} is unknown{_did_you_mean(path[-1], known)}: [{section}] takes {', '.join(known) or 'no options'}; {origin.where(key, 'correct it in', None)}"


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close and given not in close else ""


# ---------------------------------------------------------------------------------------------------- writing TOML


def dump_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML text; `tomllib` reads the same values back."""
    return "\n".join(_table_lines(tables, ())).strip() + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(name)} = {_show(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    if path and (lines or not table):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _table_lines(value, (*path, name))
    return lines


def _show(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(name))} = {_show(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_show, value))}]"
    return str(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _show(name)


def _without_none(table: Mapping[str, Any]) -> Tables:
    return {name: value for name, value in table.items() if value is not None}
