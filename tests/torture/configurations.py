"""Fuzzed recipes and overrides: a recipe loads, or the user gets one ConfigError."""

import random
import traceback
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.config.menus import FILES, menu
from mage.config.recipe import Recipe
from mage.config.sections import Choice
from tests.torture.result import Result

_VALUES = (
    *("", "0", "-1", "1e309", "nan", "inf", "-0.0", "9" * 400, "9" * 5_000, "true", "null", "[]"),
    *("[[]]", "[" * 2_000, "{}", "{a = 1}", "{" * 500 + "}" * 500, '"' * 7, "'x", "\x00", "\u202e"),
    *("\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "1979-05-27T07:32:00Z"),
    *("0x" + "f" * 300, "os.system", "subprocess.Popen", "builtins.eval", "../../../etc/passwd"),
    *("mage.cli.main", "random", "kuhn_poker", "a" * 10_000, "#", "1 # x", "x = 1\ny = 2"),
    *("\n[run]\nseed = 1", "[0, 0, 1]", '["a", 1, {b = 2}]', "1_000", "07", ".5", "5."),
    "'''a\nb'''",
)
_KEYS = (
    *("run", "run.", ".run", "run..seed", '"run".seed', "run.'seed'", "run.seed.deep.er"),
    *('"os.system"', 'opponents.train."os.system"', "opponents.train.random"),
    *("opponents.test.dirichlet-0.5", "opponents.ood.mcts-5", "a" * 3_000, "=", "", "\x00.x"),
    *("__class__.__mro__", "run.__class__", "nothing.at_all", "." * 500, ".".join("a" * 300)),
)


def torture(place: Path, attempts: int, seed: int) -> list[Result]:
    """Half overrides, half files. One of a hundred goes through the command line."""
    rng, half = random.Random(seed), attempts // 2
    recipes = [name for name, _ in menu("recipes") if not name.startswith("paper")]
    overrides = _count(half, lambda: _with_overrides(rng, recipes))
    files = _count(attempts - half, lambda: _with_file(rng, recipes, place / "fuzzed.toml"))
    return [
        Result("fuzzed overrides", half, tuple(overrides)),
        Result("fuzzed recipe files", attempts - half, tuple(files)),
    ]


def _count(attempts: int, attempt: Callable[[], str | None]) -> list[str]:
    return [fault for fault in (attempt() for _ in range(attempts)) if fault is not None]


def _with_overrides(rng: random.Random, recipes: list[str]) -> str | None:
    name = rng.choice(recipes)
    given = [_override(rng) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
    if rng.random() < 0.01:
        return _on_the_command_line([name, *given])
    return _load(name, given)


def _override(rng: random.Random) -> str:
    key = rng.choice(_KEYS) if rng.random() < 0.15 else _option(rng)
    return rng.choice(("--", "--", "--", "", "-")) + key + rng.choice("=====: ") + _value(rng)


def _option(rng: random.Random) -> str:
    section, field = rng.choice(sorted(Recipe.model_fields.items()))
    options = getattr(field.annotation, "model_fields", {})
    is_choice = isinstance(field.annotation, type) and issubclass(field.annotation, Choice)
    more = ("name", "slots", "keep", "context", "data", "game", "max_turns") if is_choice else ()
    return f"{field.alias or section}.{rng.choice([*options, *more, 'x'])}"


def _value(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(_VALUES)
    if kind < 0.8:
        return str(rng.choice((1, -1)) * rng.choice((rng.random(), rng.randrange(10**6))))
    letters = [chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x2FF)))) for _ in range(8)]
    return "".join(letters)


def _with_file(rng: random.Random, recipes: list[str], path: Path) -> str | None:
    text = (FILES["recipes"] / f"{rng.choice(recipes)}.toml").read_text()
    data = _edit(rng, text).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1 and data:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    path.write_bytes(data)
    if rng.random() < 0.01:
        return _on_the_command_line([str(path)])
    return _load(str(path), [])


def _edit(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition("=")
        match rng.randrange(6):
            case 0:
                del lines[place]
                lines = lines or [""]
            case 1 if equals:
                lines[place] = f"{key}= {_value(rng)}"
            case 2:
                lines.insert(place, rng.choice(lines))
            case 3:
                lines.insert(place, _value(rng))
            case 4:
                lines.insert(place, f"[{rng.choice(_KEYS)}]")
            case _:
                lines[place] = lines[place][: rng.randrange(len(lines[place]) + 1)]
    return "\n".join(lines)


def _load(name: str, overrides: list[str]) -> str | None:
    try:
        load_recipe(name, overrides)
    except ConfigError as error:
        return None if str(error).strip() else f"{overrides}: an empty message"
    except Exception:
        shown = str(overrides)[:300] if overrides else Path(name).read_bytes()[:2000]
        return f"{name} {shown!r}: {traceback.format_exc()[-900:]}"
    return None


def _on_the_command_line(words: list[str]) -> str | None:
    done = CliRunner().invoke(app, ["show", *words])
    if done.exit_code in (0, 2) and "Traceback" not in done.output:
        return None
    return f"mage show {words}: exit code {done.exit_code}: {done.exception!r}"
