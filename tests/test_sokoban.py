"""Sokoban: play, splits, options, Boxoban files, golden play-throughs."""

import itertools
import random
import tarfile
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console
from sokoban_oracle import all_states, neighbours, read_drawing, search_all
from toys import scripted_agent

from mage.cli.terminal.evaluation_table import table
from mage.cli.terminal.results import evaluation_table
from mage.config.menus import find_item
from mage.environments.base import check, golden
from mage.environments.sokoban import Sokoban, SokobanState
from mage.environments.sokoban.levels import parse_level, read_levels
from mage.environments.sokoban.rooms import MOVES, Room, make_room
from mage.environments.sokoban.search import solve
from mage.evaluation.figures import summarise
from mage.evaluation.rows import read_tasks, write_tasks
from mage.memory.notes import Notes
from mage.opponents.base import Population
from mage.play import Setting, play_groups
from mage.seeds import derive
from mage.types import Task

GOLDEN = Path(__file__).parent / "golden"
BOXOBAN = Path(__file__).parents[2] / "shared/data/boxoban/levels.tar.xz"
seeds = st.integers(0, 2**62)

EDGE = """
######
#    #
#@$  #
# .  #
######
""".strip()  # by hand: up, right, down solves it; two pushes to the right lose it
LINE = """
#######
#@ $ .#
#######
""".strip()  # three moves to the right, by hand


# --- Play -----------------------------------------------------------------------------------------


def play_expert(state: SokobanState) -> int:
    """Play the expert's moves until the room is solved; returns their number."""
    while state.turn() is not None:
        action = state.expert()
        assert action is not None
        assert action in state.legal()
        state.apply(action)
    assert state.scores() == (1.0,)
    return len(state.moves)


@pytest.mark.parametrize(
    ("size", "boxes", "longest"), [(5, 1, 3), (5, 3, 9), (7, 2, 21), (6, 4, 12)]
)
def test_other_sizes_work(size: int, boxes: int, longest: int) -> None:
    state = Sokoban(size=size, boxes=boxes, ood_boxes=1, shortest=2, longest=longest).start(7)
    assert 2 <= play_expert(state) <= longest


@given(seeds, st.sampled_from((1, 2, 3)))
def test_the_expert_solves_every_room_in_exactly_its_distance_without_regret(
    seed: int, boxes: int
) -> None:
    state = Sokoban(boxes=boxes).start(seed)
    distance = state.room.distance(state.player, state.boxes)
    assert play_expert(state) == distance
    assert set(state.regrets) == {0}
    assert state.expert() is None


@given(seeds, seeds)
def test_random_play_keeps_the_rules(seed: int, luck: int) -> None:
    """Moves agree with brute force, and lost rooms are exactly those without a solution."""
    state, rng = (
        Sokoban(stop_when_lost=False, turn_moves=1, longest=7).start(seed),
        random.Random(luck),
    )
    distances = search_all(state.room.draw(state.player, state.boxes)) if seed % 10 == 0 else None
    while state.turn() is not None:
        floor, targets, before = read_drawing(
            state.observe(0).split(":\n" if not state.moves else ".\n", 1)[1].rsplit("\n", 1)[0]
        )
        state.apply(rng.choice(state.legal()))
        after = read_drawing(state.room.draw(state.player, state.boxes))[2]
        assert after == before or after in neighbours(before, floor)
        assert (after != before) == state.last[-1][1]
        assert len(after[1]) == 2
        assert after[1] <= floor
        assert after[0] not in after[1]
        assert state.solved == (after[1] == targets)
        if distances is not None:
            assert (state.dead_since is not None) == (after not in distances)


def start_at(text: str, **options: Any) -> SokobanState:
    return SokobanState(Sokoban(**options), parse_level(text))


def test_a_lost_room_ends_the_episode_and_the_recap_names_the_move() -> None:
    state = start_at(EDGE)
    state.apply("up down right")
    assert state.turn() == 0
    state.apply("right up up")
    assert state.turn() is None
    # By hand: distance 3 before and 6 after the first turn, so 3 + 6 - 3 moves were wasted.
    assert (state.dead_since, state.scores(), state.regrets) == (4, (0.0,), [6, None])
    recap = (
        "You began at row 3, column 2. Your moves: up, down, right, right. Boxes on targets at "
        "the end: 0 of 1."
    )
    assert (
        state.recap(0)
        == f"{recap} After move 4 (right) the room could not be solved any more. You lost."
    )


def test_a_lost_room_continues_if_stop_when_lost_is_off() -> None:
    state = start_at(EDGE, stop_when_lost=False)
    state.apply("right right")
    assert state.dead_since == 2
    assert state.turn() == 0
    assert state.expert() is None


def test_the_words_view_is_relative_to_the_player() -> None:
    state = start_at(EDGE, view="words")  # places by hand, from the drawing above
    assert state.observe(0) == (
        "The room:\nBoxes: 1 right. Targets: 1 right 1 down. Walls: left.\nBoxes on targets: "
        "0 of 1."
    )
    state.apply("up right")
    assert state.observe(0) == (
        "You made: up, right.\nBoxes: 1 down. Targets: 2 down. Walls: up.\nBoxes on targets: "
        "0 of 1."
    )
    state.apply("right down down")
    assert "Targets: 1 left. Walls: down." in state.observe(0)
    assert "#" not in state.environment.rules()


def test_both_views_can_be_shown_together() -> None:
    state = start_at(LINE, view="both")
    assert state.observe(0) == (
        "The room:\n# # # # # # #\n# P _ X _ O #\n# # # # # # #\n"
        "Boxes: 2 right. Targets: 4 right. Walls: up, down, left.\nBoxes on targets: 0 of 1."
    )
    assert "# wall" in state.environment.rules()
    assert "2 right 1 up" in state.environment.rules()


def test_moves_after_the_solution_are_ignored() -> None:
    state = start_at(LINE)
    state.apply("left right right")
    state.apply("right left left")
    assert state.regrets == [1, 0]  # the blocked move to the left
    assert [word for word, _ in state.last] == ["right"]
    assert state.turn() is None
    assert state.recap(0).endswith(
        "Your moves: left (blocked), right, right, right. You solved the room in 4 moves."
    )


def test_the_episode_ends_at_the_turn_limit() -> None:
    state = start_at(LINE, max_turns=2, longest=6)
    for _ in range(2):
        state.apply("left")
    assert state.turn() is None
    assert state.recap(0).endswith(
        "0 of 1. The turns ran out. The room was not solved, but it still could be. You lost."
    )


def test_the_recap_mentions_that_no_move_was_made() -> None:
    assert "You made no move." in start_at(LINE).recap(0)


def test_the_map_marks_player_and_boxes_on_targets() -> None:
    state = start_at("#######\n#@$..$#\n#######", stop_when_lost=False)
    state.apply("right")
    state.apply("right right")
    assert state.observe(0).splitlines() == [
        "You made: right, right (blocked).",
        "# # # # # # #",
        "# _ _ S * X #",
        "# # # # # # #",
        "Boxes on targets: 1 of 2.",
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Up", "up"),
        ("up,LEFT", "up left"),
        ("  left ,  left, up ", "left left up"),
        ("u l d", "up left down"),
        ("↑→", "up right"),
        ("⬆️ ⬅️", "up left"),
        ("right.", "right"),
    ],
)
def test_alternative_spellings_of_moves_are_parsed(written: str, read: str) -> None:
    assert Sokoban().start(0).read(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        ",",
        "jump",
        "up up up up",
        "up\x00",
        "up\nleft",
        "up\x1b[2J",
        "up " * 40_000,
        "u" * 100_000,
        "upup",
        "?",
        "ẞ",
    ],
)
def test_other_texts_are_not_moves(written: str) -> None:
    assert Sokoban().start(0).read(written) is None


# --- The contract, splits, options ----------------------------------------------------------------


def test_sokoban_keeps_the_contract() -> None:
    assert find_item("environments", "sokoban") is Sokoban
    assert check(Sokoban(), games=30) == []


def test_play_throughs_equal_the_golden_file() -> None:
    assert golden(Sokoban()) == (GOLDEN / "sokoban.txt").read_text("utf-8")


def test_the_number_of_actions_follows_turn_moves() -> None:
    assert len(Sokoban().start(0).legal()) == 84
    assert Sokoban(turn_moves=1, longest=7).start(0).legal() == MOVES


def test_no_room_and_no_symmetric_form_of_it_is_in_two_splits() -> None:
    world = Sokoban(size=5, boxes=1, ood_boxes=2, shortest=1, longest=4)
    rooms = {
        split: {walls_and_targets(world.for_split(split).room(derive(n))) for n in range(300)}
        for split in ("train", "test")
    }
    assert len(rooms["train"]) > 60
    assert len(rooms["test"]) > 20
    assert not {form for room in rooms["train"] for form in symmetric_forms(room)} & rooms["test"]


def walls_and_targets(room: Room) -> str:
    floor = {place: "." if cell in room.targets else "_" for cell, place in enumerate(room.cells)}
    squares = [floor.get(square, "#") for square in range(room.height * room.width)]
    return "\n".join("".join(squares[at : at + room.width]) for at in range(0, 25, room.width))


def symmetric_forms(drawing: str) -> set[str]:
    """The drawing and its seven rotations and mirror images."""
    forms, rows = set[str](), drawing.splitlines()
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]  # a quarter turn
        forms |= {"\n".join(rows), "\n".join(row[::-1] for row in rows)}
    return forms


def test_out_of_domain_rooms_have_other_numbers_of_boxes_and_every_difficulty() -> None:
    world = Sokoban().for_split("ood")
    rooms = [world.room(seed) for seed in range(34)]
    assert sorted((len(room.boxes), room.distance(room.player, room.boxes)) for room in rooms) == [
        (boxes, moves) for boxes in (1, 3) for moves in range(5, 22)
    ]
    assert {world.stratum(seed) for seed in range(34)} == set(range(world.strata()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boxes": 5}, "1 to 4 boxes"),
        ({"size": 4}, "greater than or equal to 5"),
        ({"size": 10, "boxes": 3}, "cannot have 3 boxes"),
        ({"shortest": 9, "longest": 8}, "more than longest"),
        ({"max_turns": 6}, "do not fit into max_turns = 6 turns of 3"),
        ({"ood_levels": "x"}, "no effect without levels"),
        ({"levels": "no/such/folder"}, "no Boxoban levels at 'no/such/folder'"),
        ({"levels": __file__, "boxes": 1}, "boxes has no effect with levels"),
    ],
)
def test_inconsistent_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sokoban(**options)


@pytest.mark.parametrize(
    ("given", "boxes"), [(3, (3,)), ("3", (3,)), ("1,2", (1, 2)), ([1, 2], (1, 2))]
)
def test_numbers_of_boxes_accept_numbers_and_text(given: Any, boxes: tuple[int, ...]) -> None:
    assert Sokoban(boxes=given).boxes == boxes


def test_an_impossible_solution_length_gives_a_clear_message() -> None:
    world = Sokoban(size=5, boxes=1, shortest=20, longest=21)
    with pytest.raises(
        ValueError, match="no 5x5 room with 1 box was found whose solution takes 20 to 21 moves"
    ):
        world.start(0)


# --- Boxoban levels -------------------------------------------------------------------------------


def test_search_and_table_agree_on_solvability() -> None:
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
def test_a_broken_level_file_gives_one_clear_message(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "000.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Sokoban(levels=str(file)).start(0)


def test_levels_without_subfolders_are_divided_into_splits(tmp_path: Path) -> None:
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
def boxoban(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not BOXOBAN.exists():
        pytest.skip("the Boxoban levels are not here")
    folder = tmp_path_factory.mktemp("boxoban")
    with tarfile.open(BOXOBAN) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_boxoban_levels_load_and_are_solved(boxoban: Path) -> None:
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


def test_evaluation_reports_wasted_moves_per_turn(tmp_path: Path) -> None:
    """By hand: the first `left right` wastes the blocked step, the next two waste both moves: (1 +
    2 + 2) / 3.
    """
    (tmp_path / "000.txt").write_text(f"; 0\n{LINE}\n")
    world, task = (
        Sokoban(levels=str(tmp_path), ood_levels=str(tmp_path), max_turns=3),
        Task("sokoban", 1, 0, "", "ood"),
    )
    agent = scripted_agent(lambda prompt: "<action>left right</action>")
    played = play_groups(Setting(world, agent, Notes(keep="none"), episodes=2), [[task]], seed=1)
    found = summarise(played, world.for_split("ood"), Population(), "ood")
    assert [one.regret.value for one in found.overall.episodes if one.regret] == [
        pytest.approx(5 / 3)
    ] * 2
    header, first, *_ = table(found)
    assert dict(zip(header, first, strict=True))["regret"] == "1.67"
    shown = StringIO()
    Console(file=shown, width=100).print(evaluation_table(found, "a title", 100)[0])
    names, _, *lines = [line.split() for line in shown.getvalue().splitlines()[2:] if line.strip()]
    assert names == [
        "episode",
        "tasks",
        "success",
        "Pass@k",
        "score",
        "gain",
        "regret",
        "illegal",
        "tokens",
    ]
    assert "1.667" in lines[0]
    assert [line[0] for line in lines] == ["1", "2"], (
        "without opponents and seats every episode is told once"
    )
    write_tasks(tmp_path / "tasks.jsonl", found.rows)
    assert read_tasks(tmp_path / "tasks.jsonl") == found.rows
