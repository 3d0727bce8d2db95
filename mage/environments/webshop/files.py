"""WebShop's own JSON files: finding, parsing and writing them."""

import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mage.config.errors import UserError
from mage.environments.webshop.generate import Raw
from mage.environments.webshop.products import Product
from mage.seeds import derive

OFFICIAL, VARIABLE = "official", "WEBSHOP_DATA"
_LONGEST_ASIN = 10


def data_folder(data: str) -> Path:
    """The folder that `data` names; `official` is the folder in an environment variable."""
    if data != OFFICIAL:
        return Path(data).expanduser()
    if not os.environ.get(VARIABLE):
        raise UserError(
            f"data = {OFFICIAL!r}, but {VARIABLE} is not set. Download items_shuffle_1000.json and "
            "items_ins_v2_1000.json with gdown (docs/worlds.md has the commands); then set "
            f"{VARIABLE} or environments.data to their folder. An empty data needs no download."
        )
    return Path(os.environ[VARIABLE]).expanduser()


def find_files(folder: Path) -> tuple[Path, Path, Path]:
    """Products, attributes and human instructions in a data folder; the last is optional."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}: environments.data must name the folder with WebShop's "
            "items_shuffle*.json and items_ins_v2*.json; docs/worlds.md says how to get them"
        )
    names = {
        kind: sorted(folder.glob(f"{kind}*.json")) for kind in ("items_shuffle", "items_ins_v2")
    }
    for kind, found in names.items():
        if len(found) != 1:
            has = "has none"
            if found:
                has = f"has {len(found)}: {', '.join(path.name for path in found)}"
            raise UserError(
                f"{folder} must hold one file {kind}*.json and {has}; see docs/worlds.md"
            )
    return names["items_shuffle"][0], names["items_ins_v2"][0], folder / "items_human_ins.json"


def read_folder(folder: Path, human: bool) -> Raw:
    products, attributes, instructions = find_files(folder)
    if human and not instructions.is_file():
        raise UserError(f"there is no {instructions}, which goals = 'human' needs")
    return Raw(
        _read(products, list),
        _read(attributes, dict),
        _read(instructions, dict) if human else {},
        str(products),
    )


def _read(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(found, kind):
        raise UserError(
            f"{path} is damaged: it must hold a JSON {'list' if kind is list else 'object'}, "
            f"not {type(found).__name__}"
        )
    return found


def parse_all(raw: Raw, most: int, human: bool) -> Iterator[Product]:
    """Products in file order, without duplicate and overlong asins, as in WebShop."""
    seen = set[str]()
    for number, item in enumerate(raw.products[:most] if most else raw.products):
        try:
            asin = item["asin"]
            if asin == "nan" or len(asin) > _LONGEST_ASIN or asin in seen:
                continue
            seen.add(asin)
            yield _parse(
                item, raw.attributes.get(asin, {}), raw.human.get(asin, []) if human else ()
            )
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise UserError(
                f"{raw.place} is damaged: product {number} does not have WebShop's form "
                f"({type(error).__name__}: {error})"
            ) from None


def _parse(
    item: dict[str, Any], known: dict[str, Any], instructions: Sequence[dict[str, Any]]
) -> Product:
    prices, tag = _read_price(item.get("pricing"))
    asin, bullets = item["asin"], item["small_description"]
    price = (
        prices[0]
        if len(prices) == 1
        else random.Random(derive("webshop", "price", asin)).uniform(prices[0], prices[1])
    )
    wanted = tuple(map(str, known.get("instruction_attributes") or ()))
    return Product(
        asin=str(asin),
        title=_text(item["name"]),
        description=_text(item["full_description"]),
        bullets=tuple(map(_text, bullets if isinstance(bullets, list) else [bullets])),
        price_tag=tag,
        price=price,
        options=_read_options(item["customization_options"] or {}),
        attributes=tuple(map(str, known["attributes"]))
        if "attributes" in known
        else ("DUMMY_ATTR",),
        category=_text(item["category"]),
        query=_text(item["query"]).lower().strip(),
        product_category=_text(item["product_category"]),
        instruction=_text(known.get("instruction") or "") if wanted else "",
        wanted=wanted,
        human=tuple(_read_human(one) for one in instructions if one["instruction_attributes"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, not {value!r:.60}")
    return value


def _read_price(text: str | None) -> tuple[list[float], str]:
    """Parse `$a` and `$a$b`. A missing price counts as 100 dollars."""
    if not text:
        return [100.0], "$100.0"
    found = [float(re.sub(r"[^\d.]", "", part)) for part in text.split("$")[1:]]
    return found[:2], f"${found[0]}" if len(found) == 1 else f"${found[0]} to ${found[1]}"


def _read_options(raw: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names and values in lower case; a slash becomes a bar, as in WebShop."""
    return {
        name.lower(): tuple(one["value"].strip().replace("/", " | ").lower() for one in values)
        for name, values in raw.items()
        if values is not None
    }


def _read_human(raw: dict[str, Any]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return (
        _text(raw["instruction"]),
        tuple(raw["instruction_attributes"]),
        tuple(raw["instruction_options"]),
    )


def contents(product: Product) -> str:
    """The text that search indexes: title, description, first bullet point and all options."""
    options = ", and ".join(
        f"{name}: {', '.join(values)}" for name, values in product.options.items()
    )
    return " ".join([product.title, product.description, *product.bullets[:1], options]).lower()


def write_folder(raw: Raw, folder: Path) -> None:
    """Write a catalogue as WebShop's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: Iterable[tuple[str, Any]] = (
        ("items_shuffle", raw.products),
        ("items_ins_v2", raw.attributes),
        ("items_human_ins", raw.human),
    )
    for name, table in tables:
        (folder / f"{name}.json").write_text(json.dumps(table), "utf-8")
