"""Every option of a recipe with its value, its default, its source and its meaning."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mage.config.loading import load_layers
from mage.config.menus import contract, engine_fields, find_item, options_model
from mage.config.recipe import Recipe
from mage.config.sections import Choice

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `source` is `default`, `recipe`, `part NAME` or `command line`."""

    value: Any
    default: Any
    source: str
    help: str


def describe_recipe(
    path_or_name: str | Path, overrides: Iterable[str] = ()
) -> dict[str, dict[str, Option]]:
    """Section -> option -> description, for a recipe with its parts and overrides."""
    layers = load_layers(path_or_name, overrides)
    found: dict[str, dict[str, Option]] = {}
    for name, field in Recipe.sections().items():
        section, chosen = field.alias or name, getattr(layers.recipe, name)
        values = {**chosen.model_dump(), **(chosen.model_extra or {})}
        fields = _section_fields(section, type(chosen), chosen)
        unknown = {key: FieldInfo(annotation=Any) for key in values if key not in fields}
        found[section] = {
            option: Option(
                value=values.get(option, _default(one)),
                default=_default(one),
                source=layers.sources.get((section, option), DEFAULT),
                help=one.description or "",
            )
            for option, one in {**fields, **unknown}.items()
        }
    return found


def describe_sections() -> dict[str, tuple[str, dict[str, Option]]]:
    """Section -> meaning and options with their defaults, without a recipe.

    A menu section has the options of its default item. Every environment has the options of the
    environment contract.
    """
    found = {}
    for name, field in Recipe.sections().items():
        section, kind = field.alias or name, field.annotation
        assert isinstance(kind, type), "a section is a class"
        assert issubclass(kind, BaseModel), "a section is a class"
        chosen = None if field.is_required() else field.default
        options = {
            option: Option(_default(one), _default(one), DEFAULT, one.description or "")
            for option, one in _section_fields(section, kind, chosen).items()
        }
        found[section] = (_meaning(section, kind), options)
    return found


def _section_fields(
    section: str, kind: type[BaseModel], chosen: BaseModel | None
) -> Mapping[str, FieldInfo]:
    """The fields of a section; in a menu section, `name` and the options of the chosen item."""
    own = dict(kind.model_fields)
    if not issubclass(kind, Choice):
        return own
    if isinstance(chosen, Choice):
        return own | item_fields(section, chosen.name)
    return own | dict(contract(section).model_fields)


def item_fields(section: str, name: str) -> dict[str, FieldInfo]:
    """The options of an item of a menu."""
    if section == "engines" and (fields := engine_fields(name)) is not None:
        return fields
    item = find_item(section, name)
    if isinstance(item, type) and issubclass(item, BaseModel):
        return {key: field for key, field in item.model_fields.items() if not field.exclude}
    is_engine = section == "engines"  # an engine of another package: a class
    function: Any = item.__init__ if is_engine else item
    return dict(options_model(function, required=not is_engine).model_fields)


def engine_option(engines: Choice, name: str) -> Any:
    """An option of the engine, or its default; None for an engine without the option."""
    if name in engines.options:
        return engines.options[name]
    field = item_fields("engines", engines.name).get(name)
    return field and field.default


def _default(field: FieldInfo) -> Any:
    found = field.get_default(call_default_factory=False)
    return None if found is PydanticUndefined else found


def _meaning(section: str, kind: type[BaseModel]) -> str:
    if issubclass(kind, Choice):
        return f"{kind.model_fields['name'].description}; `mage list {section}` shows the items"
    text = (kind.__doc__ or "").strip().partition("\n")[0]
    return text.removeprefix(f"[{section}]: ")
