"""Sokoban: play, splits, options, Boxoban files, golden play-throughs."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sokoban_oracle import neighbours, play_expert, read_drawing, search_all

from mage.config.menus import find_item
from mage.environments.base import check
from mage.environments.sokoban import Sokoban, SokobanState
from mage.environments.sokoban.levels import parse_level
from mage.environments.sokoban.rooms import MOVES, Room
from mage.seeds import derive

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


@pytest.mark.parametrize(
    ("size", "boxes", "longest"), [(5, 1, 3), (5, 3, 9), (7, 2, 21), (6, 3, 12)]
)
def test_other_sizes_work(size, boxes, longest):
    state = Sokoban(size=size, boxes=boxes, ood_boxes=1, shortest=2, longest=longest).start(7)
    assert 2 <= play_expert(state) <= longest


@given(seeds, st.sampled_from((1, 2, 3)))
def test_the_expert_solves_every_room_in_exactly_its_distance_without_regret(seed, boxes):
    state = Sokoban(boxes=boxes).start(seed)
    distance = state.room.distance(state.player, state.boxes)
    assert play_expert(state) == distance
    assert set(state.regrets) == {0}
    assert state.expert() is None


@given(seeds, seeds)
def test_random_play_keeps_the_rules(seed, luck):
    """Moves agree with brute force, and lost rooms are exactly those without a solution."""
    state, rng = Sokoban(turn_moves=1, longest=7).start(seed), random.Random(luck)
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


def test_a_lost_room_ends_the_episode_and_the_recap_names_the_move():
    state = start_at(EDGE)
    state.apply("up down right")
    assert state.turn() == 0
    state.apply("right up up")
    assert state.turn() is None
    # By hand: distance 3 before and 6 after the first turn, so 3 + 6 - 3 moves were wasted.
    assert (state.dead_since, state.scores(), state.regrets) == (4, (0.0,), [6, None])
    assert state.recap(0) == (
        "You began at row 3, column 2. Your moves: up, down, right, right. Boxes on targets at the "
        "end: 0 of 1. After move 4 (right) the room could not be solved any more. You lost."
    )


def test_the_recap_by_turns_has_the_answers_with_their_numbers():
    state = start_at(EDGE, recap="turns")
    assert state.observe(0).endswith("Boxes on targets: 0 of 1. Turn 1 of 7.")
    state.apply("up down right")
    assert state.observe(0).endswith(" Turn 2 of 7.")
    state.apply("right up up")
    assert state.recap(0) == (
        "You began at row 3, column 2. Turn 1: up down right. Turn 2: right up up. Boxes on "
        "targets at the end: 0 of 1. After turn 2 the room could not be solved any more. You lost."
    )
    assert "Turn" not in state.observe(0), "a finished room has no next turn"


def test_the_words_view_is_relative_to_the_player():
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


def test_both_views_can_be_shown_together():
    state = start_at(LINE, view="both")
    assert state.observe(0) == (
        "The room:\n# # # # # # #\n# P _ X _ O #\n# # # # # # #\n"
        "Boxes: 2 right. Targets: 4 right. Walls: up, down, left.\nBoxes on targets: 0 of 1."
    )
    assert "# wall" in state.environment.rules()
    assert "2 right 1 up" in state.environment.rules()


def test_moves_after_the_solution_are_ignored():
    state = start_at(LINE)
    state.apply("left right right")
    state.apply("right left left")
    assert state.regrets == [1, 0]  # the blocked move to the left
    assert [word for word, _ in state.last] == ["right"]
    assert state.turn() is None
    assert state.recap(0).endswith(
        "Your moves: left (blocked), right, right, right. You solved the room in 4 moves."
    )


def test_the_episode_ends_at_the_turn_limit():
    state = start_at(LINE, max_turns=2, longest=6)
    for _ in range(2):
        state.apply("left")
    assert state.turn() is None
    assert state.recap(0).endswith(
        "0 of 1. The turns ran out. The room was not solved, but it still could be. You lost."
    )


def test_the_recap_mentions_that_no_move_was_made():
    assert "You made no move." in start_at(LINE).recap(0)


def test_the_map_marks_player_and_boxes_on_targets():
    state = start_at("#######\n#@$..$#\n#######")
    state.apply("right")
    state.apply("right right")
    assert state.observe(0).splitlines() == [
        "You made: right.",
        "# # # # # # #",
        "# _ _ S * X #",
        "# # # # # # #",
        "Boxes on targets: 1 of 2.",
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(("Up", "up"), ("up,LEFT", "up left"), ("  left ,  left, up ", "left left up")),
        *(("u l d", "up left down"), ("↑→", "up right"), ("⬆️ ⬅️", "up left"), ("right.", "right")),
    ],
)
def test_alternative_spellings_of_moves_are_parsed(written, read):
    assert Sokoban().start(0).read(written) == read


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", ",", "jump", "up up up up", "up\x00", "up\nleft", "up\x1b[2J", "upup", "?", "ẞ"),
        *("up " * 40_000, "u" * 100_000),
    ],
)
def test_other_texts_are_not_moves(written):
    assert Sokoban().start(0).read(written) is None


# --- The contract, splits, options ----------------------------------------------------------------


def test_sokoban_keeps_the_contract():
    assert find_item("environments", "sokoban") is Sokoban
    assert check(Sokoban(), games=30) == []


def test_the_number_of_actions_follows_turn_moves():
    assert len(Sokoban().start(0).legal()) == 84
    assert Sokoban(turn_moves=1, longest=7).start(0).legal() == MOVES


def test_no_room_and_no_symmetric_form_of_it_is_in_two_splits():
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


def test_out_of_domain_rooms_have_other_numbers_of_boxes_and_every_difficulty():
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
def test_inconsistent_options_are_rejected(options, message):
    with pytest.raises(ValidationError, match=message):
        Sokoban(**options)


@pytest.mark.parametrize(
    ("given", "boxes"), [(3, (3,)), ("3", (3,)), ("1,2", (1, 2)), ([1, 2], (1, 2))]
)
def test_numbers_of_boxes_accept_numbers_and_text(given, boxes):
    assert Sokoban(boxes=given).boxes == boxes


def test_an_impossible_solution_length_gives_a_clear_message():
    told = "no 5x5 room with 1 box was found whose solution takes 20 to 21 moves"
    with pytest.raises(ValueError, match=told):
        Sokoban(size=5, boxes=1, shortest=20, longest=21).start(0)
