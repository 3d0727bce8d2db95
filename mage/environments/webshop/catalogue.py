"""Products and goals as memory-mapped arrays that all processes of a machine share.

WebShop's JSON files (or a generated catalogue) are compiled once into a cache folder ($MAGE_CACHE,
else ~/.cache/mage). Products are numbered in the order of their asin, which is how Lucene breaks
ties. Goals are numbered as in WebShop, so the first 500 of the fixed shuffle are its 500 test
goals.
"""

import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mage.config.errors import UserError
from mage.environments.webshop.files import contents, find_files, parse_all, read_folder
from mage.environments.webshop.generate import Style, generate
from mage.environments.webshop.products import Goal, Product
from mage.environments.webshop.search import Index, Texts, build_index, join_texts
from mage.seeds import derive

Arrays = dict[str, npt.NDArray[Any]]
GoalKind = Literal["synthetic", "human"]
NO_LIMIT = 1_000_000.0
HELD_OUT = 20  # one product in so many is held out for the split out of domain
_FORMAT = 4  # version of the compiled files
_SHUFFLE = 233  # WebShop's own seed
# Generated catalogues up to this size are not cached: they take a third of a second.
_SMALL = 2_000


_FIELDS = tuple(field.name for field in fields(Product))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a catalogue comes from: a folder with WebShop's files, or the generator."""

    folder: str = ""
    products: int = 0  # 0 = all products of the folder
    style: Style = "full"
    goals: GoalKind = "synthetic"


class Catalogue:
    """Products by number or asin, search, and goals in shuffled order."""

    def __init__(self, arrays: Arrays, kind: GoalKind) -> None:
        self.records = Texts(arrays["records"], arrays["record_starts"])
        self.asins = Texts(arrays["asins"], arrays["asin_starts"])
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
        self.owners, self.firsts = arrays["owners"], arrays["firsts"]
        self.order, self.kind = arrays["order"], kind
        self.product = lru_cache(maxsize=4096)(self._product)
        self.find = lru_cache(maxsize=4096)(self._find)
        self.search = lru_cache(maxsize=1024)(self._search)
        self.first_texts = lru_cache(maxsize=4)(self._first_texts)
        self.by_product = lru_cache(maxsize=4)(self._by_product)

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

    def _first_texts(self, count: int) -> frozenset[str]:
        """The instructions of the first goals."""
        return frozenset(self.goal(place).text for place in range(count))

    def _by_product(self, start: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Places from `start` on with goals of held-out products, and with goals of all others.

        A hash of the asin holds out one product in `HELD_OUT`.
        """
        names = [self.asins.bytes(int(number)) for number in self.owners]
        held = np.array([zlib.crc32(name) % HELD_OUT == 0 for name in names], bool)
        places = np.arange(start, self.goals)
        owners = np.searchsorted(self.firsts, self.order[places], side="right") - 1
        is_held = held[owners]
        return tuple(places[is_held].tolist()), tuple(places[~is_held].tolist())

    def _product(self, number: int) -> Product:
        return _decode(self.records.bytes(number))

    def _search(self, words: str, hits: int) -> tuple[str, ...]:
        numbers = self.index.search(words, hits)
        return tuple(self.asins.bytes(number).decode() for number in numbers)


def make_goal(product: Product, number: int, which: int, kind: GoalKind) -> Goal:
    """Goal number `which` of a product: a combination of its options, or a human instruction."""
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
    """The price limit: the larger of two out of the next four multiples of ten.

    There is no limit if fewer than two lie below 1,000.
    """
    above = [step for step in (10.0 * k for k in range(1, 100)) if step > product.price][:4]
    if len(above) > 1:
        return max(random.Random(derive("webshop", "limit", product.asin, which)).sample(above, 2))
    return NO_LIMIT


def _limit_text(upper: float) -> str:
    return f", and price lower than {upper:.2f} dollars" if upper < NO_LIMIT else ""


def count_goals(product: Product, kind: GoalKind) -> int:
    if kind == "human":
        return len(product.human)
    return math.prod(map(len, product.options.values())) if product.instruction else 0


# --- Cache --------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def open_catalogue(source: Source) -> Catalogue:
    """The catalogue of a source; compiled on first use."""
    if not source.folder and source.products <= _SMALL:
        return Catalogue(_compile(source), source.goals)
    place = cache_folder() / "webshop" / _key(source)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if not place.is_dir():
                _save(_compile(source), place)
    except OSError:  # no writable cache folder: keep it in memory
        return Catalogue(_compile(source), source.goals)
    return Catalogue({path.stem: _map(path) for path in place.glob("*.npy")}, source.goals)


def _map(path: Path) -> npt.NDArray[Any]:
    """Map an array into memory; an empty array is loaded instead.

    It is seen as a plain array: every slice of a `np.memmap` costs several microseconds more.
    """
    found = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)
    return cast(npt.NDArray[Any], found.view(np.ndarray))


def cache_folder() -> Path:
    return Path(os.environ.get("MAGE_CACHE") or "~/.cache/mage").expanduser()


def _compile(source: Source) -> Arrays:
    """All arrays of a catalogue, from the raw files."""
    raw = (
        read_folder(Path(source.folder), source.goals == "human")
        if source.folder
        else generate(source.products, source.style)
    )
    listed = list(parse_all(raw, source.products if source.folder else 0, source.goals == "human"))
    if not listed:
        raise UserError(f"{raw.place} holds no product")
    rank = sorted(range(len(listed)), key=lambda at: listed[at].asin)
    owners = [at for at, product in enumerate(listed) if count_goals(product, source.goals)]
    firsts = np.cumsum([0, *(count_goals(listed[at], source.goals) for at in owners)])
    numbers = list(range(int(firsts[-1])))
    random.Random(_SHUFFLE).shuffle(numbers)
    number_of = np.empty(len(listed), np.int32)
    number_of[rank] = np.arange(len(listed))
    index = build_index(contents(listed[at]) for at in rank)
    records = join_texts(_encode(listed[at]) for at in rank)
    asins = join_texts(listed[at].asin.encode() for at in rank)
    return {
        "records": records.joined, "record_starts": records.starts, "asins": asins.joined,
        "asin_starts": asins.starts, "words": index.vocabulary.joined,
        "word_starts": index.vocabulary.starts, "starts": index.starts,
        "documents": index.documents, "shares": index.shares, "frequent": index.frequent,
        "rows": index.rows, "owners": number_of[owners], "firsts": firsts[:-1].astype(np.int64),
        "order": np.array(numbers, np.int32),
    }  # fmt: skip


def _save(arrays: Arrays, place: Path) -> None:
    """Write to a temporary folder, then rename, so that readers never see a partial one."""
    beside = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    try:
        for name, array in arrays.items():
            np.save(beside / f"{name}.npy", array)
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process compiles, the others wait. The lock is released when its holder ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(source: Source) -> str:
    """Cache key: it changes with the format, the source and the files."""
    facts: list[object] = [_FORMAT, source]
    if source.folder:
        found = [path for path in find_files(Path(source.folder)) if path.is_file()]
        facts += [
            (path.name, path.stat().st_size, path.stat().st_mtime_ns, str(path.resolve()))
            for path in found
        ]
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


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
