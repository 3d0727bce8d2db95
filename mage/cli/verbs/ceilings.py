"""`mage ceilings`: exact bounds on the score of any player, against a population or alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from mage.cli.arguments import (
    OVERRIDES,
    AsJson,
    Seat,
    World,
    check_opponent_of,
    find_seat,
    make_environment,
    print_json,
    read_pairs,
    read_world,
)
from mage.cli.terminal import UsageError, console
from mage.cli.terminal.tables import plain_table
from mage.config.menus import find_item, menu
from mage.environments.base import Environment
from mage.opponents.base import find, sample_players

verbs = typer.Typer()

Objective = Literal["score", "win"]
Rows = Sequence[tuple[str, str]]


@verbs.command(
    name="ceilings",
    context_settings=OVERRIDES,
    epilog="Example: mage ceilings rock_paper_scissors --population dirichlet-0.5 --throws 3",
)
def show_ceilings(
    ctx: typer.Context,
    environment: World,
    weights: Annotated[
        str | None, typer.Option(metavar="NAME=SHARE,...", help="The opponents and their shares.")
    ] = None,
    population: Annotated[
        str | None,
        typer.Option(metavar="OPPONENT", help="One opponent or family, in place of --weights."),
    ] = None,
    throws: Annotated[
        int | None, typer.Option(min=1, help="Throws of a game of rock_paper_scissors.")
    ] = None,
    players: Annotated[
        int, typer.Option(min=1, max=5000, help="Players that stand for a family, by exact sums.")
    ] = 200,
    seat: Annotated[Seat, typer.Option(help="The seat of the agent.")] = "first",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of a meta-episode (N).")] = 3,
    objective: Annotated[
        str,
        typer.Option(
            metavar="score|win|pass|W1,W2,...",
            help="Mean score of an episode, probability to win it, a sum of scores with one weight "
            "per episode, or Pass@N where every episode replays one deal.",
        ),
    ] = "score",
    discount: Annotated[
        float,
        typer.Option(help="Discount between episodes (g), in an environment without opponents."),
    ] = 0.6,
    as_json: AsJson = False,
) -> None:
    """Exact bounds: without adapting, the best learner's episode N, knowing the opponent.

    Without opponents: the scores by episode of the policy that is best for each return. Options of
    the environment are --environments.key=value, or --key=value.
    """
    words = _own_options([environment, *ctx.args])
    environment, options = read_world(words[0], words[1:], ctx.command)
    options |= {} if throws is None else {"throws": str(throws)}
    world = make_environment(environment, options)
    if not world.multi_agent:
        check_opponent_of(world, weights or population)
        _show_learners(world, episodes, discount, as_json)
        return
    shares = _read_shares(weights, population)
    for name in shares:
        check_opponent_of(world, name)
    given = {"environment": environment, "seat": seat, "weights": shares}
    if objective == "pass":
        _show_pass(world, shares, find_seat(world, seat), episodes, given, as_json)
        return
    if _is_fixed_throws(world, shares) and objective == "score":
        _show_throws(world, shares, episodes, given, as_json)
        return
    kind, counts = _read_objective(objective, episodes)
    sampled = sample_players(shares, players)
    with console(stderr=True).status("computing exact bounds from the game tree"):
        found = _ceilings(world, sampled, find_seat(world, seat), episodes, kind, counts)
    if len(sampled) > len(shares):
        found["best_response"] = {}
        note = f"A family is represented by {players} of its players; sums over them are exact."
        found["note"] = f"{note} {found['note']}".strip()
    about = given | {"episodes": episodes, "objective": counts or kind} | found
    header = f"{environment}, agent {seat}", f"{kind} an episode"
    _show(as_json, about, header, _rows(found, objective, episodes), found["note"])


def _show(
    as_json: bool, found: Mapping[str, Any], header: Sequence[str], rows: Rows, note: str = ""
) -> None:
    """Print the figures as JSON, or as a table with a note."""
    if as_json:
        print_json(found)
        return
    console().print(plain_table(header, rows))
    if note:
        console().print(note, style="dim")


def _own_options(words: Sequence[str]) -> list[str]:
    """Write `--max-turns 4` of an environment with `max_turns` as `--environments.max_turns=4`."""
    known = {name for name, _ in menu("environments")}
    name = next((word for word in words if word in known), words[0])
    fields = {} if name.startswith("-") else find_item("environments", name).model_fields
    found: list[str] = []
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (key := key.replace("-", "_")) in fields:
            found.append(f"--environments.{key}{equals}{value}")
        elif found and found[-1].startswith("--") and "=" not in found[-1]:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _show_learners(world: Environment, episodes: int, discount: float, as_json: bool) -> None:
    from mage.evaluation.exact.learners import learner_ceilings

    with console(stderr=True).status("computing the best learners"):
        found = learner_ceilings(world, episodes, discount)
    if as_json:
        print_json(found | _restated(world, found))
        return
    titles = [f"episode {number}" for number in range(1, episodes + 1)]
    rows = [
        (kind, *(f"{score:.4f}" for score in scores), f"{sum(scores):.4f}")
        for kind, scores in found.items()
    ]
    console().print(plain_table(("best for the return", *titles, "sum"), rows, world.name))
    for name, values in _restated(world, found).items():
        rows = [(kind, *(f"{one:.4f}" for one in own)) for kind, own in values.items()]
        console().print(plain_table((name, *titles), rows))


def _restated(
    world: Environment, found: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, list[float]]]:
    """The scores in the other units of the environment, by unit and return."""
    return {
        name: {kind: [world.restated(score)[name] for score in own] for kind, own in found.items()}
        for name in world.restated(1.0)
    }


def _is_fixed_throws(world: Environment, shares: Mapping[str, float]) -> bool:
    """Whether the population is `dirichlet-A` in rock-paper-scissors, which has a closed form."""
    from mage.evaluation.exact.throw_ceilings import dirichlet_alpha

    name, *others = shares
    return not others and dirichlet_alpha(world, name) is not None


def _show_pass(
    world: Environment,
    shares: Mapping[str, float],
    seat: int,
    episodes: int,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    """The largest Pass@k of a replayed deal, and how many deals can be won at all."""
    from mage.evaluation.exact.replayed import count_winnable, pass_bound, win_chances

    if world.restart != "same":
        raise UsageError(
            "--objective pass is the bound of a deal that every episode replays: add "
            "--environments.restart=same"
        )
    bounds = {k: pass_bound(world, shares, seat, k) for k in (1, episodes)}
    chances = {name: win_chances(world, name, seat) for name in shares}
    rows = [(f"largest Pass@{k}", f"{value:.4f}") for k, value in bounds.items()]
    rows += [
        (f"deals that can be won against {name}", f"{count_winnable(found)} of {len(found)}")
        for name, found in chances.items()
    ]
    about = {"objective": "pass", "episodes": episodes, "pass_at": bounds, "win_chances": chances}
    header = f"{world.name}, agent {given['seat']}", "replayed deal"
    _show(as_json, given | about, header, rows)


def _show_throws(
    world: Environment,
    shares: Mapping[str, float],
    episodes: int,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    """The ceilings against fixed throws; `episodes` in the JSON are the scores per throw."""
    from mage.evaluation.exact.throw_ceilings import dirichlet_alpha, throw_ceilings

    (name,) = shares
    alpha = dirichlet_alpha(world, name)
    assert alpha is not None, "checked by the caller"
    found = throw_ceilings(alpha, world.model_dump()["throws"], episodes)
    rows = [
        (f"best learner, episode {number}", f"{score:+.4f}")
        for number, score in enumerate(found.episodes, start=1)
    ]
    rows.append(("best without memory, any episode", f"{found.episodes[0]:+.4f}"))
    rows.append(("best that knows the opponent", f"{found.knows_opponent:+.4f}"))
    header = f"{world.name} against {name}", "score a throw"
    _show(as_json, given | {"objective": "score"} | asdict(found), header, rows)


def _rows(found: Mapping[str, Any], objective: str, episodes: int) -> Rows:
    titles = {
        "non_adapting": "best policy that does not adapt",
        "bayes_final": f"best learner, its episode {episodes}",
        "bayes_mean": f"best learner of all, mean of {episodes} episodes",
        "knows_opponent": "best that knows the opponent",
    }
    rows = [(text, f"{found[key]:+.4f}") for key, text in titles.items() if found[key] is not None]
    rows += [
        (f"best response to {name}", f"{value:+.4f}")
        for name, value in found["best_response"].items()
    ]
    return rows + [
        (f"best learner of the sum {objective}, episode {k}", f"{value:+.4f}")
        for k, value in enumerate(found["weighted"] or (), start=1)
    ]


def _read_shares(weights: str | None, population: str | None) -> dict[str, float]:
    if (weights is None) == (population is None):
        raise UsageError(
            "give the opponents by --weights NAME=SHARE,... or one of them by --population NAME"
        )
    if population is not None:
        return {population: 1.0}
    pairs = read_pairs((weights or "").split(","), "--weights")
    return {name: _share(name, text) for name, text in pairs.items()}


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise UsageError(
            f"--weights {name}={text}: a share is a number, as in {name}=0.3"
        ) from None
    if not 0 < share < float("inf"):
        raise UsageError(f"--weights {name}={text}: a share must be greater than 0")
    return share


def _read_objective(text: str, episodes: int) -> tuple[Objective, tuple[float, ...]]:
    """The objective of an episode and, for a weighted sum of scores, the weights."""
    if text in ("score", "win"):
        return ("win" if text == "win" else "score"), ()
    try:
        counts = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(
            f"--objective {text}: allowed are score, win, pass, or one weight an episode, as in "
            ".25,.25,1"
        ) from None
    if (
        len(counts) != episodes
        or not all(0 <= count < float("inf") for count in counts)
        or not any(counts)
    ):
        raise UsageError(
            f"--objective {text}: {episodes} episodes need {episodes} weights of at least 0, "
            "and one above it"
        )
    return "score", counts


def _ceilings(
    world: Environment,
    shares: Mapping[str, float],
    seat: int,
    episodes: int,
    objective: Objective,
    counts: tuple[float, ...],
) -> dict[str, Any]:
    """All ceilings; if the tree is too large for a learner, those that know the opponent."""
    from mage.evaluation.exact.ceilings import best_response, ceilings, optimum
    from mage.evaluation.exact.game_tree import TooLarge

    searches = [name for name in shares if find(name).policy_is == "sampled"]
    notes = []
    exact: dict[str, float | None] = dict.fromkeys(("non_adapting", "bayes_final", "bayes_mean"))
    weighted: tuple[float, ...] | None = None
    try:
        if searches and world.strata() == 1:
            raise TooLarge(f"{world.name} has too many positions to search each 200 times")
        found = asdict(ceilings(world, shares, seat, episodes, objective))
        exact |= {name: value for name, value in found.items() if name in exact}
        weighted = optimum(world, shares, seat, counts) if counts else None
    except TooLarge as error:
        notes.append(
            f"No learner's ceiling: {error}. The table shows the best against each opponent."
        )
    if searches:
        names = ", ".join(searches)
        notes.append(f"{names} has no exact policy: 200 searches a position estimate it.")
    responses = {name: best_response(world, name, seat, objective) for name in shares}
    total = sum(shares.values())
    knows = sum(share * responses[name] for name, share in shares.items()) / total
    return {
        **exact,
        "knows_opponent": knows,
        "best_response": responses,
        "weighted": weighted,
        "note": " ".join(notes),
    }
