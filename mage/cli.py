"""The verbs: arguments in, one call, figures out. Results go to standard output, everything else to standard error.

A user's mistake is one message and exit code 2; our own mistakes keep their traceback. What loads torch is imported inside
the verb that needs it, so that `mage list` and a game against a scripted opponent start at once.
"""

import json
import linecache
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Group
from typer.core import TyperGroup

import mage
from mage.config import load_recipe
from mage.environments.base import SEATS, Environment, check
from mage.menus import MENUS, PACKAGE, find_item, menu
from mage.mistakes import ConfigError
from mage.opponents.base import Opponent, find, known
from mage.rundir import RunFolder, choose_path
from mage.terminal import Mistake, console
from mage.terminal.menus import names, read_menu
from mage.terminal.tables import plain_table
from mage.types import MetaEpisode, Split, Task

if TYPE_CHECKING:  # these are slow to load
    from mage.evaluate import Comparison, Evaluation
    from mage.memory.base import Memory
    from mage.terminal.candidates import Candidate

Seat = Literal["first", "second"]
Keep = Literal["none", "reflections", "history", "both"]
Verdict = tuple[list[str], list[str]]  # faults and remarks
STOPPED, MISTAKE = 130, 2
AGENT = "agent"


class Verbs(TyperGroup):
    """Turns a user's mistake into one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, RuntimeError) as error:
            if not is_mistake(error):
                raise
            typer.echo("\n".join([f"mage: {_told(error)}", *getattr(error, "__notes__", ())]), err=True)
            raise typer.Exit(MISTAKE) from None
        except KeyboardInterrupt:
            typer.echo("\nmage: stopped", err=True)
            raise typer.Exit(STOPPED) from None


def is_mistake(error: Exception) -> bool:
    """Whether this is the user's to mend. A ValueError is if a line of ours raised it on purpose, no slip of ours or of a library."""
    if isinstance(error, OSError):
        return not isinstance(error, BrokenPipeError)
    if isinstance(error, ValueError):
        return _raised_on_purpose(error)
    cause = error.__cause__
    return isinstance(cause, OSError) or type(cause).__module__.startswith("safetensors")


def _raised_on_purpose(error: Exception) -> bool:
    trace = error.__traceback__
    assert trace is not None, "it has been raised"
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    return PACKAGE in Path(file).parents and linecache.getline(file, trace.tb_lineno).strip().startswith("raise")


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


app = typer.Typer(
    name="mage",
    cls=Verbs,
    help="Language-model agents that learn during play: train them, judge them, play against them.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Options = Annotated[list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the environment; may be repeated.")]
Overridden = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A name of `mage list recipes` or a .toml file.")]


def main() -> None:
    app(prog_name="mage")


@app.callback()
def show_help(ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"mage {mage.__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


# --- train ---------------------------------------------------------------------------------------------------------


@app.command(context_settings=OVERRIDES, epilog="Example: mage train demo --run.seed=1 --play.groups=32")
def train(
    ctx: typer.Context,
    recipe: Overridden = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with this run folder instead.")] = None,
    runs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where new run folders go.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train a recipe and measure it before and after. Any option of the recipe may be changed by --section.option=value."""
    name, overrides = _words(recipe, ctx.args)
    if resume is not None:
        if name or overrides:
            raise Mistake(f"--resume goes on with the run's own recipe: leave out {' '.join(filter(None, (name, *overrides)))}")
        folder = _open_to_resume(resume)
    elif name is None:
        raise Mistake(f"which recipe? There are {names('recipes')}, or a .toml file of your own; or go on with a run: --resume RUN")
    else:
        folder = _new_run(name, overrides, runs)
    if not (folder.path / "summary.json").is_file():
        _train(folder, is_new=resume is None)
    _report(folder, as_json)


def _words(first: str | None, others: Sequence[str]) -> tuple[str | None, list[str]]:
    """The one name and the overrides of a command line, in whatever order they came."""
    words = [word for word in (first, *others) if word is not None]
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1:
        raise Mistake(f"one name is enough, not {', '.join(names)}; an option is changed by --section.option=value, with an equals sign")
    return (names[0] if names else None), [word for word in words if word.startswith("-")]


def _new_run(name: str, overrides: Sequence[str], runs: Path) -> RunFolder:
    from mage.chat import Chat

    recipe = load_recipe(name, overrides)
    Chat.load(recipe.model_folder())  # what is missing there is told before a folder is made
    return RunFolder.create(choose_path(runs, recipe, Path(name).stem), recipe)


def _open_to_resume(path: Path) -> RunFolder:
    """The run, unless one of its newest checkpoints is broken: what to do about it is the user's to say."""
    from mage.learn import checkpoint

    folder = RunFolder.open(path)
    found = checkpoint.latest(folder.checkpoints)
    if found.broken:
        rest = f"the run goes on from {found.path.name}" if found.path else "the run starts again from its first update"
        raise Mistake("\n".join([*found.broken, f"Nothing was changed. Move the broken ones out of {folder.checkpoints}, and {rest}."]))
    return folder


def _train(folder: RunFolder, is_new: bool) -> None:
    err = console(stderr=True)
    err.print(f"run folder {folder.path}; loading the model", markup=False, soft_wrap=True)
    from mage import trainer
    from mage.report.findings import read_findings
    from mage.terminal.progress import Interrupt, Onlooker

    go_on = f"go on with mage train --resume {folder.path}"
    with Onlooker(folder.recipe, err, read_findings(folder).bounds) as onlooker, Interrupt(onlooker.say) as interrupt:
        try:
            trainer.train(folder.path, onlooker, interrupt)
        except (trainer.Stopped, KeyboardInterrupt) as stop:
            saved = "saved" if isinstance(stop, trainer.Stopped) else "at once; all up to the last checkpoint is kept"
            onlooker.say(f"Stopped, {saved}. To finish, {go_on}")
            raise typer.Exit(STOPPED) from None
        except (ValueError, OSError, RuntimeError) as error:
            if is_new and not _has_begun(folder):
                shutil.rmtree(folder.path, ignore_errors=True)
            else:
                error.add_note(f"Once that is mended: {go_on}")
            raise


def _has_begun(folder: RunFolder) -> bool:
    """Whether there is anything in the folder that a run has worked for."""
    return any(any((folder.path / name).iterdir()) for name in ("checkpoints", "evaluations", "episodes"))


# --- report --------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: mage report runs/demo-1")
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")], as_json: AsJson = False) -> None:
    """Write a run's curves, transcripts and page anew and show its table; also of a run that is still going."""
    _report(RunFolder.open(run), as_json)


def _report(folder: RunFolder, as_json: bool) -> None:
    from mage.report import write_report
    from mage.report.findings import read_findings
    from mage.terminal.results import result_table, verdicts

    files, findings = write_report(folder), read_findings(folder)
    if as_json:
        summary = folder.read_summary() if findings.finished else {"run": str(folder.path)}
        _print_json({**summary, "finished": findings.finished, "files": [str(path) for path in files]})
        return
    out = console()
    for split in findings.splits:
        out.print(Group(result_table(findings, split), *verdicts(findings, split)))
    if not findings.finished:
        out.print(f"not finished: update {findings.updates} of {folder.recipe.run.updates}; go on with mage train --resume {folder.path}")
    paths = {"plot": files[0], "page": next((path for path in files if path.suffix == ".html"), None)}
    paths |= {"summary": folder.path / "summary.json" if findings.finished else None, "run folder": folder.path}
    for title, path in paths.items():
        if path is not None:
            out.print(f"{title:<10} {path}", soft_wrap=True)


# --- evaluate ------------------------------------------------------------------------------------------------------


@app.command(context_settings=OVERRIDES, epilog="Example: mage evaluate runs/demo-1 --memory none --size 600")
def evaluate(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="RUN|RECIPE", help="A run folder, or a recipe for its untrained model.")],
    checkpoint: Annotated[str | None, typer.Option(metavar="best|latest|N", help="Which checkpoint of the run; best by default.")] = None,
    split: Annotated[Split, typer.Option(help="The pool of opponents.")] = "test",
    size: Annotated[int | None, typer.Option(min=1, help="Tasks of the panel; as the recipe says by default.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of a meta-episode; as the recipe says by default.")] = None,
    memory: Annotated[Keep | None, typer.Option(help="Another memory than the recipe's; none = emptied.")] = None,
    panel: Annotated[Literal["final", "select"], typer.Option(help="That of final figures, or that which chooses checkpoints.")] = "final",
    compare: Annotated[str | None, typer.Option(metavar="RUN|RECIPE", help="Play with this one too; show the paired difference.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play a fixed panel and show every figure with its 95 % interval. Recipe options may be changed by --section.option=value."""
    name, overrides = _words(what, ctx.args)
    overrides += [f"--evaluate.episodes={episodes}"] if episodes else []
    chosen = [one for one in (name, compare) if one is not None]
    if name is None:
        raise Mistake("what is to be evaluated? Name a run folder or a recipe")
    from mage.evaluate import compare as compare_pairs
    from mage.terminal.candidates import find_candidate, play_panel

    notes = None if memory is None else _notes(memory)
    candidates = [find_candidate(one, overrides, checkpoint) for one in chosen]
    found = [play_panel(candidate, split, panel, size, notes) for candidate in candidates]
    paired = compare_pairs(found[1], found[0]) if len(found) == 2 else None
    if as_json:
        pairs = zip(candidates, found, strict=True)
        sides = [{"of": one.title, "update": one.update, "evaluation": result.to_json()} for one, result in pairs]
        extra = {"compared_with": sides[1], "comparison": paired.to_json()} if paired else {}
        _print_json({**sides[0], "split": split, "panel": panel, "memory": memory or "as in the recipe"} | extra)
    else:
        _show_evaluations(candidates, found, paired, f"{panel} {split} panel, memory {memory or 'as in the recipe'}")


def _show_evaluations(candidates: Sequence["Candidate"], found: Sequence["Evaluation"], paired: "Comparison | None", what: str) -> None:
    from mage.terminal.results import comparison_table, evaluation_table

    out, hidden = console(), list[str]()
    for one, result in zip(candidates, found, strict=True):
        title = f"{one.title}, update {one.update}: {what}, {result.overall.tasks:,} tasks"
        shown, hidden = evaluation_table(result, title, out.width)
        out.print(shown)
    if paired:
        out.print(comparison_table(paired, f"{candidates[0].title} minus {candidates[1].title}, paired over {paired.tasks:,} tasks"))
    if hidden:
        out.print(f"no room for {', '.join(hidden)}: widen the window, or use --json", style="dim")


def _notes(keep: str) -> "Memory":
    return find_item("memory", "notes")(keep=keep)


# --- play ----------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: mage play kuhn_poker --against conservative --seat second")
def play(
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="A name of `mage list environments`.")],
    against: Annotated[str | None, typer.Option(metavar="OPPONENT", help="A name of `mage list opponents`, or `agent`.")] = None,
    seat: Annotated[Seat, typer.Option(help="Where you sit; with --watch, where the agent sits.")] = "first",
    episodes: Annotated[int, typer.Option(min=1, help="Games.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same deals; drawn anew by default.")] = None,
    option: Options = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch an agent play instead: its prompts, replies, notes and memory.")] = False,
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="The agent of this run, at its best checkpoint.")] = None,
    model: Annotated[str, typer.Option(metavar="FOLDER", help="Without --run: the agent's model.")] = "embedded",
    memory: Annotated[Keep | None, typer.Option(help="The agent's memory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play in the terminal against an opponent or against the agent, or watch an agent play."""
    of_agent = {"--run": run, "--memory": memory, "--model": model if model != "embedded" else None}
    _check_play(environment, against, watch, as_json, of_agent)
    options = _pairs(option, "--option")
    world = _environment(environment, options)
    opponent = "" if against == AGENT else _opponent_for(world, against)
    place = _seat(world, seat)
    seed = secrets.randbits(31) if seed is None else seed
    task = Task(world.name, seed, place, opponent, "test")
    from mage.terminal import person

    if not watch and against != AGENT:
        person.play_person(world, task, episodes, console())
        console().print(f"(the same deals again: --seed {seed})", style="dim")
        return
    from mage.terminal.candidates import find_player

    parts = find_player(environment, world, options, run, model).parts
    setting = parts.setting(evaluating=True, memory=None if memory is None else _notes(memory))
    setting = replace(setting, episodes=episodes)
    if against == AGENT:
        person.play_agent(setting, replace(task, seat=1 - place, opponent=person.PERSON), console())
    else:
        played = person.watch_agent(setting, task, console(quiet=as_json))
        if as_json:
            _print_json(_transcript(played))


def _check_play(environment: str, against: str | None, watch: bool, as_json: bool, of_agent: dict[str, Any]) -> None:
    given = [name for name, value in of_agent.items() if value is not None]
    if given and not watch and against != AGENT:
        raise Mistake(f"{', '.join(given)} has no effect without an agent: add --watch, or play --against {AGENT}")
    if {"--run", "--model"} <= set(given):
        raise Mistake("--model has no effect with --run: the run has its own model")
    if as_json and not watch:
        raise Mistake("--json has no effect without --watch: a game at the keyboard is played in words")
    if against == AGENT and not find_item("environments", environment).multi_agent:
        raise Mistake(f"{environment} is played alone, not --against {AGENT}")
    if watch and against == AGENT:
        raise Mistake(f"--watch shows the agent against an opponent: --against one of {names('opponents')}")


def _transcript(played: MetaEpisode) -> dict[str, Any]:
    return {
        "task": asdict(played.task),
        "episodes": [
            {
                "memory": memory,
                "reflection": episode.reflection.completion.text if episode.reflection else None,
                "replies": [{"observation": turn.observation, "text": turn.completion.text, "legal": turn.legal} for turn in episode.turns],
                "moves": [asdict(move) for move in episode.moves],
                "score": episode.score,
                "outcome": episode.outcome,
                "recap": episode.recap,
            }
            for memory, episode in zip(played.memories, played.episodes, strict=True)
        ],
    }


# --- list ----------------------------------------------------------------------------------------------------------


@app.command(name="list", epilog="Example: mage list opponents")
def list_menus(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=f"One of {', '.join(MENUS)}, recipes; all by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a recipe can name: environments, opponents, memories, engines, advantages, and the recipes themselves."""
    kinds = [kind] if kind else [*MENUS, "recipes"]
    found = {one: read_menu(one, with_options=as_json or kind is not None) for one in kinds}
    if as_json:
        _print_json({one: [asdict(item) for item in items] for one, items in found.items()})
        return
    out = console()
    for one, items in found.items():
        header = ("name", "what it is", "options") if any(item.details() for item in items) else ("name", "what it is")
        rows = [(item.name, item.description, item.details())[: len(header)] for item in items]
        out.print(plain_table(header, rows, one) if rows else f"{one}: none")
    if kind == "opponents":
        out.print("Options stand behind dashes, in this order: mcts-100, biased-corner-2.", style="dim")
    elif kind is None:
        out.print("`mage list KIND` also shows options.", style="dim")


# --- check ---------------------------------------------------------------------------------------------------------


@app.command(name="check", epilog="Example: mage check kuhn_poker")
def check_item(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An environment or an opponent.")],
    environment: Annotated[str | None, typer.Option(metavar="NAME", help="Where to check an opponent; by default wherever it plays.")] = None,
    option: Options = None,
    games: Annotated[int, typer.Option(min=1, help="Random games.")] = 50,
    folder: Annotated[Path, typer.Option("--golden", metavar="FOLDER", help="Where golden play-throughs lie.")] = Path("tests/golden"),
    write: Annotated[bool, typer.Option("--write", help="Write the environment's golden play-through.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hold an environment or an opponent against its contract; exit code 1 if something is wrong."""
    options = _pairs(option, "--option")
    opponent = _known_opponent(name)
    if opponent is None:
        if environment is not None:
            raise Mistake(f"--environment has no effect: {name} is an environment itself")
        path = folder / f"{'-'.join([name, *options.values()])}.txt"
        faults, notes = _check_environment(_environment(name, options), path, games, write)
    else:
        if write:
            raise Mistake(f"--write has no effect: {name} is an opponent, and only environments have a golden play-through")
        faults, notes = _check_opponent(name, opponent, [environment] if environment else _plays(opponent), options, games)
    if as_json:
        _print_json({"name": name, "kind": "environment" if opponent is None else "opponent", "faults": faults, "notes": notes})
    else:
        verdict = f"{name}: {f'{len(faults)} faults' if faults else 'all is well'}"
        for line in (*(f"fault: {fault}" for fault in faults), *notes, verdict):
            console().print(line, markup=False, soft_wrap=True)
    raise typer.Exit(1 if faults else 0)


def _known_opponent(name: str) -> Opponent | None:
    """The opponent of this name, None if it is an environment's."""
    if name in dict(menu("environments")):
        return None
    if "." in name.split("-")[0]:
        try:
            find_item("environments", name)
        except ConfigError:
            return find(name)
        return None
    if name.split("-")[0] not in known():
        known_names = f"environments are {names('environments')}; opponents {names('opponents')}"
        raise Mistake(f"there is no environment and no opponent {name!r}: {known_names}")
    return find(name)


def _check_environment(world: Environment, path: Path, games: int, write: bool) -> Verdict:
    from mage.checks import compare_golden, write_golden

    faults = check(world, games)
    if write:
        write_golden(world, path)
        return faults, [f"wrote the golden play-through {path}"]
    if not path.is_file():
        return faults, [f"no golden play-through {path} yet: --write makes it"]
    changed = compare_golden(world, path)
    return faults + changed, ["if that is meant: --write" if changed else f"the play-through equals {path}"]


def _check_opponent(name: str, opponent: Opponent, worlds: Sequence[str], options: dict[str, str], games: int) -> Verdict:
    from mage.checks import check_opponent

    faults: list[str] = []
    for world in worlds:
        place = _environment(world, options)
        _opponent_for(place, name)
        faults += [f"{world}: {fault}" for fault in check_opponent(opponent, place, games)]
    return faults, [f"played {games} games twice in {', '.join(worlds)}, in two orders"]


def _plays(opponent: Opponent) -> list[str]:
    """Where it plays; `openspiel` stands for any game, so it is checked only when named."""
    worlds = [name for name, _ in menu("environments") if name != "openspiel" and find_item("environments", name).multi_agent]
    return [name for name in worlds if opponent.plays is None or name in opponent.plays] or list(opponent.plays or worlds)


# --- ceilings ------------------------------------------------------------------------------------------------------


@app.command(
    name="ceilings",
    epilog="Example: mage ceilings kuhn_poker --seat first --episodes 3 --weights conservative=.3,aggressive=.3,intermediate=.4",
)
def show_ceilings(
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="A name of `mage list environments`.")],
    weights: Annotated[str, typer.Option(metavar="NAME=SHARE,...", help="The opponents and their shares.")],
    seat: Annotated[Seat, typer.Option(help="Where the agent sits.")] = "first",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of a meta-episode (N).")] = 3,
    objective: Annotated[Literal["score", "win"], typer.Option(help="Mean score of an episode, or chance to win it.")] = "score",
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """What no player can beat: the best without adapting, the best learner's episode N, and one that knows the opponent."""
    world = _environment(environment, _pairs(option, "--option"))
    shares = {name: _share(name, text) for name, text in _pairs(weights.split(","), "--weights").items()}
    for name in shares:
        _opponent_for(world, name)
    with console(stderr=True).status("walking the game tree"):
        found = _ceilings(world, shares, _seat(world, seat), episodes, objective)
    if as_json:
        _print_json({"environment": environment, "seat": seat, "episodes": episodes, "weights": shares, "objective": objective} | found)
        return
    titles = {
        "non_adapting": "best policy that does not adapt",
        "bayes_final": f"best learner, its episode {episodes}",
        "bayes_mean": f"best learner of all, mean of {episodes} episodes",
        "knows_opponent": "best that knows the opponent",
    }
    rows = [(title, f"{found[key]:+.4f}") for key, title in titles.items() if found[key] is not None]
    rows += [(f"best response to {name}", f"{value:+.4f}") for name, value in found["best_response"].items()]
    console().print(plain_table((f"{environment}, agent {seat}", f"{objective} an episode"), rows))
    if found["note"]:
        console().print(found["note"], style="dim")


def _ceilings(world: Environment, shares: dict[str, float], seat: int, episodes: int, objective: Literal["score", "win"]) -> dict[str, Any]:
    """All ceilings; where the tree is too large for a learner, those that know the opponent."""
    from mage.ceilings import TooLarge, best_response, ceilings

    total = sum(shares.values())
    searches = [name for name in shares if find(name).name == "mcts"]
    note = f"{', '.join(searches)} has no exact policy: 200 searches a position stand for it." if searches else ""
    exact: dict[str, float | None] = dict.fromkeys(("non_adapting", "bayes_final", "bayes_mean"))
    try:
        if searches and world.strata() == 1:
            raise TooLarge(f"{world.name} has too many positions to search each 200 times")
        exact |= {name: value for name, value in asdict(ceilings(world, shares, seat, episodes, objective)).items() if name in exact}
    except TooLarge as error:
        note = f"No learner's ceiling: {error}. Shown is what is best against each opponent. {note}".strip()
    responses = {name: best_response(world, name, seat, objective) for name in shares}
    knows = sum(share * responses[name] for name, share in shares.items()) / total
    return {**exact, "knows_opponent": knows, "best_response": responses, "note": note}


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise Mistake(f"--weights {name}={text}: a share is a number, as in {name}=0.3") from None
    if not 0 < share < float("inf"):
        raise Mistake(f"--weights {name}={text}: a share must be greater than 0")
    return share


# --- What several verbs read ---------------------------------------------------------------------------------------


def _pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value or key in found:
            raise Mistake(f"{flag} {text}: write name=value, each name once")
        found[key] = value
    return found


def _environment(name: str, options: dict[str, str]) -> Environment:
    kind = find_item("environments", name)
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        text = "is unknown" if fault["type"] == "extra_forbidden" else f"= {fault['input']!r}: {fault['msg'].removeprefix('Value error, ')}"
        raise Mistake(f"--option {key} {text}; {name} takes {', '.join(kind.model_fields)}") from None


def _opponent_for(world: Environment, name: str | None) -> str:
    """The name of an opponent that plays this; empty where nobody sits on the other side."""
    if not world.multi_agent:
        if name is not None:
            raise Mistake(f"{world.name} has no opponents, so {name} has nobody to play against")
        return ""
    fitting = sorted(word for word, kind in known().items() if kind.plays is None or world.name in kind.plays)
    if name is None:
        raise Mistake(f"against whom? --against takes {', '.join(fitting)}, or {AGENT}")
    opponent = find(name)
    if opponent.plays is not None and world.name not in opponent.plays:
        raise Mistake(f"{name} plays {', '.join(opponent.plays)}, not {world.name}; for that there are {', '.join(fitting)}")
    return name


def _seat(world: Environment, seat: Seat) -> int:
    if SEATS.index(seat) >= world.seats:
        raise Mistake(f"--seat {seat}: {world.name} has one seat only")
    return SEATS.index(seat)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
