"""Several worlds in one training: each task belongs to one of them, in the shares of the recipe.

A mix has no episodes of its own. `world_of` gives the world of a task, and play, panels and figures
use that world. A mix of one world is that world.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator

from mage.config.errors import UserError, did_you_mean, first_fault
from mage.config.menus import find_item
from mage.config.toml import show_value, without_none
from mage.environments.base import Environment, State
from mage.types import Task

_SHARE = "share"
_OF_A_WORLD = "an option of the worlds, not of the mix"


class Mix(Environment):
    """Several worlds with shares: one agent is trained and evaluated in all of them."""

    name: ClassVar[str] = "mix"
    multi_agent: ClassVar[bool] = False  # its worlds may have opponents

    worlds: dict[str, dict[str, Any]] = Field(
        {"doors": {_SHARE: 0.5}, "kuhn_poker": {_SHARE: 0.5}},
        validate_default=True,
        min_length=1,
        description="the worlds by name, each with its `share` of the tasks (they sum to 1) and "
        "its own options",
    )
    restart: Literal["same", "fresh"] = Field("fresh", exclude=True, description=_OF_A_WORLD)
    max_turns: int = Field(1, exclude=True, description=_OF_A_WORLD)
    reward_scale: float = Field(1.0, exclude=True, description=_OF_A_WORLD)
    _inside: dict[str, Environment] = PrivateAttr(default_factory=dict)

    @field_validator("restart", "max_turns", "reward_scale")
    @classmethod
    def _belongs_to_a_world(cls, value: Any) -> Any:
        raise UserError("a mix has no such option: write it below environments.worlds.NAME")

    @field_validator("worlds")
    @classmethod
    def _are_complete(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """All options of every world, so that a stored recipe holds them."""
        shares = {name: _share(name, table) for name, table in value.items()}
        if abs(sum(shares.values()) - 1) > 1e-6:
            told = " + ".join(f"{share:g}" for share in shares.values())
            raise UserError(f"the shares must sum to 1, but {told} = {sum(shares.values()):g}")
        built = {name: _build(name, table) for name, table in value.items()}
        names = [world.name for world in built.values()]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"two worlds are called {name!r}, so results could not be told")
        return {
            name: {_SHARE: shares[name]} | without_none(world.model_dump())
            for name, world in built.items()
        }

    def model_post_init(self, context: Any) -> None:
        built = (_build(name, table) for name, table in self.worlds.items())
        self._inside.update({world.name: world for world in built})

    def inside(self) -> Mapping[str, Environment]:
        return self._inside

    def shares(self) -> Mapping[str, float]:
        tables = zip(self._inside, self.worlds.values(), strict=True)
        return {name: table[_SHARE] for name, table in tables}

    def world_of(self, task: Task) -> Environment:
        return self._inside.get(task.environment) or self._only()

    def check_data(self) -> None:
        for world in self._inside.values():
            world.check_data()

    def start(self, seed: int) -> State:
        return self._only().start(seed)

    def rules(self) -> str:
        return self._only().rules()

    def instance(self, seat: int) -> str:
        return self._only().instance(seat)

    def example_action(self) -> str:
        return self._only().example_action()

    @property
    def forfeit_score(self) -> float:
        return min(world.forfeit_score for world in self._inside.values())

    def _only(self) -> Environment:
        """The world of a mix of one; else an error: whoever asks has no task."""
        if len(self._inside) > 1:
            names, first = ", ".join(self._inside), next(iter(self.worlds))
            raise UserError(
                f"this is possible in one world only, and this is a mix of {names}: choose one, "
                f"for example {first}, or --environments.name={first}"
            )
        return next(iter(self._inside.values()))


def _share(name: str, table: Mapping[str, Any]) -> float:
    if _SHARE not in table:
        raise UserError(
            f"{name} has no share: write share = ... (the shares of all worlds sum to 1)"
        )
    try:
        share = float(table[_SHARE])
    except (TypeError, ValueError):
        raise UserError(f"{name}.share = {show_value(table[_SHARE])} is not a number") from None
    if not 0 < share <= 1:
        raise UserError(f"{name}.share = {share:g}: a share is above 0 and at most 1")
    return share


def _build(name: str, table: Mapping[str, Any]) -> Environment:
    """The world with its options; an error names the first wrong option."""
    if name == Mix.name:
        raise UserError("a mix cannot be a world of a mix: name its worlds")
    kind: type[Environment] = find_item("environments", name)
    options = {key: value for key, value in table.items() if key != _SHARE}
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise UserError(_fault(name, kind, error)) from None


def _fault(name: str, kind: type[Environment], error: ValidationError) -> str:
    option, text, value = first_fault(error)
    if error.errors()[0]["type"] == "extra_forbidden":
        known = [_SHARE, *kind.model_fields]
        return (
            f"{name}.{option} is unknown{did_you_mean(option, known)}: it takes {', '.join(known)}"
        )
    return f"{name}.{option} = {show_value(value)}: {text}" if option else f"{name}: {text}"
