"""Sokoban: the solver, Boxoban level files, and wasted moves in evaluation."""

import itertools
import tarfile
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sokoban_oracle import all_states, play_expert
from toys import scripted_agent

from mage.cli.terminal.results import evaluation_table
from mage.environments.base import check
from mage.environments.sokoban import Sokoban
from mage.environments.sokoban.levels import read_levels
from mage.environments.sokoban.rooms import make_room
from mage.environments.sokoban.search import solve
from mage.evaluation.rows import read_tasks, write_tasks
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import PlaySetup, play_groups
from mage.types import Task
from tests.toys import summarise

BOXOBAN = Path(__file__).parents[2] / "shared/data/boxoban/levels.tar.xz"
LINE = """
#######
#@ $ .#
#######
""".strip()  # three moves to the right, by hand


def test_search_and_table_agree_on_solvability():
    for seed in range(8):
        room = make_room(5, 2, (5, 5), seed)
        assert room is not None
        for player, boxes in itertools.islice(all_states(room), 0, None, 3):
            answer = solve(room, player, boxes)
            assert answer.certain
            assert (answer.moves is not None) == (room.distance(player, boxes) is not None)
            state = player, boxes
            for move in answer.moves or ():
                state = room.step(*state, move)
            assert answer.moves is None or state[1] == room.targets


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"hello\n", "begins with 'hello'"),
        (b"; 0\n#####\n#@$.#\n###\n", "equally long"),
        (b"; 0\n#####\n#@$?#\n#####\n", "'\\?' is none of the symbols"),
        (b"; 0\n#####\n# $.#\n#####\n", "exactly one player"),
        (b"; 0\n#####\n#@$ #\n#####\n", "1 boxes and 0 targets"),
        (b"; 0\n#####\n#@$. \n#####\n", "can leave the room"),
        (b"; 0\n#######\n#@#$ .#\n#######\n", "outside the walls"),
    ],
)
def test_a_broken_level_file_gives_one_clear_message(tmp_path, content, message):
    file = tmp_path / "000.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Sokoban(levels=str(file)).start(0)


def test_levels_without_subfolders_are_divided_into_splits(tmp_path):
    rooms = [f"#{'#' * n}#####\n#@{' ' * n}$ .#\n#{'#' * n}#####" for n in range(14)]
    rooms += ["\n".join(row[::-1] for row in room.splitlines()) for room in rooms]
    (tmp_path / "000.txt").write_text("".join(f"; {n}\n{room}\n\n" for n, room in enumerate(rooms)))
    world = Sokoban(levels=str(tmp_path), max_turns=20)
    train, test = (
        {world.for_split(split).room(seed).width for seed in range(40)}
        for split in ("train", "test")
    )
    assert not train & test
    assert train | test == {6 + n for n in range(14)}
    with pytest.raises(ValueError, match="ood_levels is empty"):
        world.for_split("ood")


@pytest.fixture(scope="module")
def boxoban(tmp_path_factory):
    if not BOXOBAN.exists():
        pytest.skip("the Boxoban levels are not here")
    folder = tmp_path_factory.mktemp("boxoban")
    with tarfile.open(BOXOBAN) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_boxoban_levels_load_and_are_solved(boxoban):
    levels = read_levels(boxoban / "unfiltered/test/000.txt")
    assert len(levels) == 1000
    assert levels[0].splitlines()[1] == "###    . #"
    world = Sokoban(
        levels=str(boxoban / "unfiltered"), ood_levels=str(boxoban / "hard"), max_turns=200
    )
    for split, seed in (("test", 0), ("test", 17), ("ood", 3)):
        state = world.for_split(split).start(seed)  # type: ignore[arg-type]
        assert len(state.room.boxes) == 4
        assert play_expert(state) > 10
    assert check(world, games=3) == []


def test_evaluation_reports_wasted_moves_per_turn(tmp_path):
    """By hand: the first `left right` wastes the blocked step, the next two waste both moves: (1 +
    2 + 2) / 3.
    """
    (tmp_path / "000.txt").write_text(f"; 0\n{LINE}\n")
    world, task = (
        Sokoban(levels=str(tmp_path), ood_levels=str(tmp_path), max_turns=3),
        Task("sokoban", 1, 0, "", "ood"),
    )
    agent = scripted_agent(lambda prompt: "<action>left right</action>")
    played = play_groups(PlaySetup(world, agent, Notes(keep="none"), episodes=2), [[task]], seed=1)
    found = summarise(played, world.for_split("ood"), Population(), "ood")
    assert [one.regret.value for one in found.overall.episodes if one.regret] == [
        pytest.approx(5 / 3)
    ] * 2
    shown = StringIO()
    Console(file=shown, width=100).print(evaluation_table(found, "a title", 100)[0])
    names, _, *lines = [line.split() for line in shown.getvalue().splitlines()[2:] if line.strip()]
    assert names == [
        *("episode", "tasks", "success", "Pass@k", "score", "gain", "regret", "illegal", "tokens")
    ]
    assert "1.667" in lines[0]
    assert [line[0] for line in lines] == ["1", "2"], (
        "without opponents and seats every episode is told once"
    )
    write_tasks(tmp_path / "tasks.jsonl", found.rows)
    assert read_tasks(tmp_path / "tasks.jsonl") == found.rows
