"""Products and goals in a form that all processes of a machine share: arrays in files, mapped, decoded one product at a time.

WebShop's own JSON files (or a generated catalogue) are compiled once into a folder of the cache ($MAGE_CACHE, else ~/.cache/mage); whoever
opens them later maps the same pages of memory. Products are numbered in the order of their asin, which is how Lucene breaks
ties; goals are numbered as WebShop numbers them, so the first 500 of the fixed shuffle are its 500 test goals.
"""

import fcntl
import hashlib
import json
import math
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mage.environments.webshop.generate import Raw, Style, generate
from mage.environments.webshop.listing import Listing, build_listing
from mage.environments.webshop.products import Goal, Product
from mage.environments.webshop.search import Index, Texts, build_index, join_texts
from mage.seeds import derive

Arrays = dict[str, npt.NDArray[Any]]
GoalKind = Literal["synthetic", "human"]
NO_LIMIT = 1_000_000.0
_FORMAT = 3  # of the compiled files
_SHUFFLE = 233  # WebShop's own seed
_SMALL = 2_000  # generated catalogues up to this size are made anew in every process: that takes a third of a second
_LONGEST_ASIN = 10


_FIELDS = tuple(field.name for field in fields(Product))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a catalogue comes from: a folder of WebShop's files, or the generator."""

    folder: str = ""
    products: int = 0  # 0 = all of the folder's
    style: Style = "full"
    seed: int = 0
    goals: GoalKind = "synthetic"


class Catalogue:
    """Products by number or asin, search, and goals in their shuffled order."""

    def __init__(self, arrays: Arrays, kind: GoalKind) -> None:
        self.records, self.asins = (
            Texts(arrays["records"], arrays["record_starts"]),
            Texts(arrays["asins"], arrays["asin_starts"]),
        )
        vocabulary = Texts(arrays["words"], arrays["word_starts"])
        self.index = Index(
            vocabulary,
            arrays["starts"],
            arrays["documents"],
            arrays["shares"],
            arrays["frequent"],
            arrays["rows"],
            len(self.asins),
        )
        self.listing = Listing(
            Texts(arrays["keys"], arrays["key_ends"]), arrays["key_starts"], arrays["listed"]
        )
        self.owners, self.firsts, self.order, self.kind = (
            arrays["owners"],
            arrays["firsts"],
            arrays["order"],
            kind,
        )
        self.owner_weights = arrays["weights"]
        self.product = lru_cache(maxsize=4096)(self._product)
        self.find = lru_cache(maxsize=4096)(self._find)
        self.search = lru_cache(maxsize=1024)(self._search)
        self.first_texts = lru_cache(maxsize=4)(self._first_texts)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def goals(self) -> int:
        return len(self.order)

    def _find(self, asin: str) -> Product:
        number = self.asins.find(asin)
        assert number is not None, f"{asin} comes from a page or a goal, so it is in the catalogue"
        return self.product(number)

    def goal(self, place: int) -> Goal:
        """The goal at this place of the fixed shuffle."""
        number = int(self.order[place])
        owner = int(np.searchsorted(self.firsts, number, side="right")) - 1
        return make_goal(
            self.product(int(self.owners[owner])),
            number,
            number - int(self.firsts[owner]),
            self.kind,
        )

    def weights(self, places: range) -> npt.NDArray[np.float64]:
        """How often WebShop draws the goals at these places, in any unit: goals whose attributes are rare come oftener."""
        numbers = self.order[places.start : places.stop]
        found: npt.NDArray[np.float64] = self.owner_weights[
            np.searchsorted(self.firsts, numbers, side="right") - 1
        ]
        return found

    def draw(self, luck: int, hits: int) -> tuple[str, ...]:
        """So many products at random."""
        numbers = random.Random(luck).sample(range(len(self)), min(hits, len(self)))
        return tuple(self.asins.bytes(number).decode() for number in numbers)

    def _first_texts(self, count: int) -> frozenset[str]:
        """The instructions of the goals in the first places."""
        return frozenset(self.goal(place).text for place in range(count))

    def _product(self, number: int) -> Product:
        return _decode(self.records.bytes(number))

    def _search(self, words: str, hits: int) -> tuple[str, ...]:
        listed = self.listing.find(words)
        return tuple(
            self.asins.bytes(number).decode()
            for number in (self.index.search(words, hits) if listed is None else listed)
        )


def make_goal(product: Product, number: int, which: int, kind: GoalKind) -> Goal:
    """The product's goal number `which`: a combination of its options, or what a person wrote about it."""
    if kind == "human":
        text, attributes, wanted = product.human[which]
        upper = _draw_limit(product, which)
        return Goal(
            number, product.asin, text.strip(".") + _limit_text(upper), attributes, wanted, upper
        )
    names, values = sorted(product.options), list[str]()
    for name in reversed(names):  # the last option changes fastest
        which, at = divmod(which, len(product.options[name]))
        values.append(product.options[name][at])
    pairs = tuple(zip(names, reversed(values), strict=True))
    said = ", and ".join(f"{name}: {value}" for name, value in pairs)
    upper = _draw_limit(product, 0)
    text = f"{product.instruction}{' with ' if said else ''}{said}{_limit_text(upper)}"
    return Goal(number, product.asin, text, product.wanted, pairs, upper)


def _draw_limit(product: Product, which: int) -> float:
    """The larger of two of the four multiples of ten above the price, none if there are not two below 1,000."""
    above = [step for step in (10.0 * k for k in range(1, 100)) if step > product.price][:4]
    return (
        max(random.Random(derive("webshop", "limit", product.asin, which)).sample(above, 2))
        if len(above) > 1
        else NO_LIMIT
    )


def _limit_text(upper: float) -> str:
    return f", and price lower than {upper:.2f} dollars" if upper < NO_LIMIT else ""


def count_goals(product: Product, kind: GoalKind) -> int:
    if kind == "human":
        return len(product.human)
    return math.prod(map(len, product.options.values())) if product.instruction else 0


# --- Opening ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def open_catalogue(source: Source) -> Catalogue:
    """The catalogue of a source, compiled when it is opened for the first time."""
    if not source.folder and source.products <= _SMALL:
        return Catalogue(_compile(source), source.goals)
    place = cache_folder() / "webshop" / _key(source)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if not place.is_dir():
                _save(_compile(source), place)
    except OSError:  # nowhere to write: this process keeps its own
        return Catalogue(_compile(source), source.goals)
    return Catalogue({path.stem: _map(path) for path in place.glob("*.npy")}, source.goals)


def _map(path: Path) -> npt.NDArray[Any]:
    """An array in the memory of all who map it; an empty one cannot be mapped."""
    found = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)
    return cast(npt.NDArray[Any], found)


def cache_folder() -> Path:
    return Path(os.environ.get("MAGE_CACHE") or "~/.cache/mage").expanduser()


def _compile(source: Source) -> Arrays:
    """All arrays of a catalogue, from the raw files."""
    raw = (
        read_folder(Path(source.folder), source.goals == "human")
        if source.folder
        else generate(source.products, source.seed, source.style)
    )
    listed = list(_parse_all(raw, source.products if source.folder else 0, source.goals == "human"))
    if not listed:
        raise ValueError(f"{raw.place} holds no product")
    rank = sorted(range(len(listed)), key=lambda at: listed[at].asin)
    owners = [at for at, product in enumerate(listed) if count_goals(product, source.goals)]
    firsts = np.cumsum([0, *(count_goals(listed[at], source.goals) for at in owners)])
    numbers = list(range(int(firsts[-1])))
    random.Random(_SHUFFLE).shuffle(numbers)
    number_of = np.empty(len(listed), np.int32)
    number_of[rank] = np.arange(len(listed))
    index, listing = (
        build_index(contents(listed[at]) for at in rank),
        build_listing(listed, number_of),
    )
    records, asins = (
        join_texts(_encode(listed[at]) for at in rank),
        join_texts(listed[at].asin.encode() for at in rank),
    )
    return {
        "records": records.joined, "record_starts": records.starts, "asins": asins.joined, "asin_starts": asins.starts,
        "words": index.vocabulary.joined, "word_starts": index.vocabulary.starts, "starts": index.starts, "documents": index.documents,
        "shares": index.shares, "frequent": index.frequent, "rows": index.rows,
        "keys": listing.keys.joined, "key_ends": listing.keys.starts, "key_starts": listing.starts, "listed": listing.products,
        "weights": _weigh([listed[at] for at in owners], source.goals),
        "owners": number_of[owners], "firsts": firsts[:-1].astype(np.int64), "order": np.array(numbers, np.int32),
    }  # fmt: skip


def _weigh(owners: Sequence[Product], kind: GoalKind) -> npt.NDArray[np.float64]:
    """The weight of each goal of a product: the mean of 1 / how many goals ask for the attribute, over its attributes; 1 for people's goals."""
    if kind == "human":
        return np.ones(len(owners))
    asked = Counter[str]()
    for product in owners:
        for attribute in product.wanted:
            asked[attribute] += count_goals(product, kind)
    return np.array(
        [
            math.fsum(1 / asked[attribute] for attribute in product.wanted) / len(product.wanted)
            for product in owners
        ]
    )


def _save(arrays: Arrays, place: Path) -> None:
    """Write beside, then rename: whoever finds the folder finds it whole."""
    beside = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    try:
        for name, array in arrays.items():
            np.save(beside / f"{name}.npy", array)
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process compiles, the others wait; the lock goes with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(source: Source) -> str:
    """A name for the compiled form: it changes with the format, the source and the files."""
    facts: list[object] = [_FORMAT, source]
    if source.folder:
        found = [path for path in find_files(Path(source.folder)) if path.is_file()]
        facts += [
            (path.name, path.stat().st_size, path.stat().st_mtime_ns, str(path.resolve()))
            for path in found
        ]
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


# --- WebShop's files --------------------------------------------------------------------------------------------------


def find_files(folder: Path) -> tuple[Path, Path, Path]:
    """Products, attributes and human instructions in a data folder; the last may be missing."""
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}: data names the folder with WebShop's items_shuffle*.json and items_ins_v2*.json"
        )
    names = {
        kind: sorted(folder.glob(f"{kind}*.json")) for kind in ("items_shuffle", "items_ins_v2")
    }
    for kind, found in names.items():
        if len(found) != 1:
            has = (
                f"has {len(found)}: {', '.join(path.name for path in found)}"
                if found
                else "has none"
            )
            raise ValueError(f"{folder} must hold one file {kind}*.json and {has}")
    return names["items_shuffle"][0], names["items_ins_v2"][0], folder / "items_human_ins.json"


def read_folder(folder: Path, human: bool) -> Raw:
    products, attributes, instructions = find_files(folder)
    if human and not instructions.is_file():
        raise ValueError(f"there is no {instructions}, which goals = 'human' needs")
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
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(found, kind):
        raise ValueError(
            f"{path} is damaged: it must hold a JSON {'list' if kind is list else 'object'}, not {type(found).__name__}"
        )
    return found


def _parse_all(raw: Raw, most: int, human: bool) -> Iterator[Product]:
    """Products in the order of the file, as WebShop takes them: no repeated and no overlong asin."""
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
            raise ValueError(
                f"{raw.place} is damaged: product {number} does not have WebShop's form ({type(error).__name__}: {error})"
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
    """`$a` and `$a$b`; without a price it is 100 dollars."""
    if not text:
        return [100.0], "$100.0"
    found = [float(re.sub(r"[^\d.]", "", part)) for part in text.split("$")[1:]]
    return found[:2], f"${found[0]}" if len(found) == 1 else f"${found[0]} to ${found[1]}"


def _read_options(raw: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names and values in lower case; a slash, which WebShop's addresses do not bear, becomes a bar."""
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
    """What search sees of a product: title, description, first bullet point and all options."""
    options = ", and ".join(
        f"{name}: {', '.join(values)}" for name, values in product.options.items()
    )
    return " ".join([product.title, product.description, *product.bullets[:1], options]).lower()


def _encode(product: Product) -> bytes:
    return json.dumps(
        [getattr(product, field) for field in _FIELDS], separators=(",", ":")
    ).encode()


def _decode(record: bytes) -> Product:
    values: dict[str, Any] = dict(zip(_FIELDS, json.loads(record), strict=True))
    values["options"] = {name: tuple(found) for name, found in values["options"].items()}
    values["human"] = tuple(
        (text, tuple(attributes), tuple(options)) for text, attributes, options in values["human"]
    )
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Product(**values)


def write_folder(raw: Raw, folder: Path) -> None:
    """A catalogue as WebShop's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: Iterable[tuple[str, Any]] = (
        ("items_shuffle", raw.products),
        ("items_ins_v2", raw.attributes),
        ("items_human_ins", raw.human),
    )
    for name, table in tables:
        (folder / f"{name}.json").write_text(json.dumps(table), "utf-8")
