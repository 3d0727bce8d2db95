"""The items of every menu with their options. Engines are not imported: that is slow."""

from dataclasses import dataclass
from typing import Any

from mage.config.describe import describe_sections, item_fields
from mage.config.menus import FILES, MENUS, find_item, menu
from mage.opponents.base import Opponent, known, option_names

OPTIONS = "options"  # the sections of a recipe, listed like a menu


@dataclass(frozen=True, slots=True)
class ItemOption:
    name: str
    default: Any
    description: str

    def __str__(self) -> str:
        return f"{self.name} = {self.default}" + (
            f": {self.description}" if self.description else ""
        )


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a menu. `plays`: the environments of an opponent, None for all of them."""

    name: str
    description: str
    options: tuple[ItemOption, ...] = ()
    plays: tuple[str, ...] | None = None

    def details(self) -> str:
        return "\n".join(
            [*map(str, self.options), *([f"(plays {', '.join(self.plays)})"] if self.plays else [])]
        )


def read_sections() -> list[Item]:
    """The sections of a recipe with their options."""
    return [
        Item(
            section,
            meaning,
            tuple(ItemOption(name, one.default, one.help) for name, one in options.items()),
        )
        for section, (meaning, options) in describe_sections().items()
    ]


def read_menu(kind: str, with_options: bool) -> list[Item]:
    if kind == OPTIONS:
        found = read_sections()
        return found if with_options else [Item(one.name, one.description) for one in found]
    return [
        _read_item(kind, name, line) if with_options else Item(name, line)
        for name, line in menu(kind)
    ]


def _read_item(kind: str, name: str, description: str) -> Item:
    if kind in FILES:
        return Item(name, description)
    fields, plays = item_fields(kind, name), None
    if kind == "opponents":
        item = known()[name]
        fields = {option: item.model_fields[option] for option in option_names(item)}
        plays = _environments_of(item)
    options = [ItemOption(key, one.default, one.description or "") for key, one in fields.items()]
    return Item(name, description, tuple(options), plays)


def _environments_of(opponent: type[Opponent]) -> tuple[str, ...] | None:
    """The games that an opponent plays; None if it plays all of them."""
    worlds = {name: find_item("environments", name) for name, _ in menu("environments")}
    games = [name for name, world in worlds.items() if world.multi_agent]
    plays = tuple(name for name in games if opponent.plays(worlds[name]()))
    return None if len(plays) == len(games) else plays


def names(kind: str) -> str:
    """The names of a menu for a message."""
    return ", ".join(name for name, _ in menu(kind)) or "none"


def list_items(kind: str | None = None) -> Any:
    """The items of one menu with their options, or of all menus by name.

    Menus are environments, opponents, memory, engines, advantages, recipes, parts and options.
    """
    if kind is not None:
        return read_menu(kind, with_options=True)
    return {one: read_menu(one, with_options=True) for one in (*MENUS, *FILES, OPTIONS)}
