"""Probabilities of legal moves against the sampler, which computes them in another way."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from mage.api.check_run import check_run
from mage.config.recipe import build_recipe
from mage.learn import move_probabilities as scoring
from mage.learn.imitate import supervised
from mage.learn.move_probabilities import move_probabilities
from mage.learn.pack.packing import Packed
from mage.play import play_groups
from mage.ranks.ranks import Ranks
from mage.run_folder import RunError, RunFolder
from mage.run_folder.turn_files import TurnMoves, read_moves
from mage.training.build import Components, build_components
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.training.tasks import draw_tasks
from mage.training.transcripts import TranscriptStore
from mage.types import MetaEpisode, Turn
from tests.test_trainer import STYLES, never, small_recipe


@lru_cache
def played() -> tuple[Components, list[MetaEpisode]]:
    """Tic-Tac-Toe by the embedded model at temperature 0.8, on the CPU in float32."""
    tables = {
        "environments": {"name": "tic_tac_toe"},
        "opponents": {"train": {"random": 1.0}},
        "agent": {"max_tokens": 8, "temperature": 0.8},
        "engines": {"name": "local", "context": 1024},
        "play": {"groups": 2, "members": 2, "episodes": 2},
        "model": {"dtype": "float32"},
        "run": {"threads": 1, "device": "cpu"},
    }
    parts = build_components(build_recipe(tables))
    return parts, play_groups(parts.begin_play(), draw_tasks(parts.recipe, 1), 5)


def by_place(found: list[TurnMoves]) -> dict[tuple[int, int, int, int], TurnMoves]:
    return {(one.group, one.member, one.episode, one.index): one for one in found}


def turns_of(metas: list[MetaEpisode]) -> dict[tuple[int, int, int, int], Turn]:
    return {
        (meta.group, meta.member, k, index): turn
        for meta in metas
        for k, episode in enumerate(meta.episodes)
        for index, turn in enumerate(episode.turns)
    }


def score(parts: Components, metas: list[MetaEpisode]) -> list[TurnMoves]:
    assert parts.model is not None
    return move_probabilities(parts.model, parts.agent(False), metas, parts.recipe.learn)


def test_a_played_move_has_the_probability_with_which_it_was_sampled():
    """The sampler computes one token at a time from its cache; here whole moves are scored."""
    parts, metas = played()
    found, compared = by_place(score(parts, metas)), 0
    for place, turn in turns_of(metas).items():
        moves = dict(found[place].moves)
        before, spelled = parts.agent(False).spell_moves(turn.completion, turn.legal_moves)
        written = turn.completion.token_ids[len(before) :]
        if written in spelled:
            sampled = math.exp(sum(turn.completion.logprobs[len(before) :]))
            assert moves[str(turn.action)] == pytest.approx(sampled, rel=1e-4)
            compared += 1
    assert compared > 10


def test_all_legal_moves_are_listed_and_their_sum_is_a_probability():
    parts, metas = played()
    turns = turns_of(metas)
    for place, one in by_place(score(parts, metas)).items():
        assert {move for move, _ in one.moves} == set(turns[place].legal_moves)
        assert one.count == len(turns[place].legal_moves)
        assert sum(chance for _, chance in one.moves) == pytest.approx(one.legal, abs=1e-4)
        assert one.legal <= 1 + 1e-6
        chances = [chance for _, chance in one.moves]
        assert chances == sorted(chances, reverse=True)


def test_text_before_the_action_is_part_of_the_condition():
    parts, metas = played()
    agent = parts.agent(False)
    turn = metas[0].episodes[0].turns[0]
    encode = agent.chat.encode
    reply = replace(turn.completion, token_ids=encode("I think <action>5</action>"))
    before, spelled = agent.spell_moves(reply, ("1", "5"))
    assert before + spelled[1] == reply.token_ids
    assert before + spelled[0] == encode("I think <action>1</action>")
    silent = replace(turn.completion, token_ids=encode("no idea"))
    assert agent.spell_moves(silent, ("1",)) == ((), (encode("<action>1</action>"),))


def test_a_set_is_scored_up_to_its_limit(monkeypatch):
    parts, metas = played()
    first = [place for place in turns_of(metas) if place[:2] == (0, 0)]
    longest = [max(len(turn.prompt_ids) for turn in one.turns) for one in metas[0].episodes]
    monkeypatch.setattr(scoring, "MOST_TOKENS", sum(longest) + 600)
    assert list(by_place(score(parts, metas))) == first


def test_moves_share_a_prompt_that_is_longer_than_a_tree(monkeypatch):
    """Without sharing, 9 moves of a turn would take 9 times the tokens of its prompt."""
    parts, metas = played()
    whole, computed = score(parts, metas[:1]), [0]
    measured = supervised.hidden_states

    def counted(model: Any, packed: Packed) -> Any:
        computed[0] += packed.tokens
        return measured(model, packed)

    monkeypatch.setattr(supervised, "hidden_states", counted)
    monkeypatch.setattr(scoring, "_TREE_TOKENS", 16)
    by_turn = score(parts, metas[:1])
    turns = turns_of(metas[:1]).values()
    moves = sum(len(turn.legal_moves) for turn in turns)
    longest_move = 12  # tokens
    assert computed[0] <= sum(len(turn.prompt_ids) for turn in turns) + moves * longest_move
    for one, other in zip(whole, by_turn, strict=True):
        assert dict(one.moves) == pytest.approx(dict(other.moves), abs=2e-6)


def test_the_layout_of_a_gpu_gives_the_same_probabilities(monkeypatch):
    parts, metas = played()
    forest = score(parts, metas)
    monkeypatch.setattr(scoring, "best_layout", lambda model, learn: "trie")
    for one, other in zip(forest, score(parts, metas), strict=True):
        assert dict(one.moves) == pytest.approx(dict(other.moves), abs=2e-6)


@pytest.mark.e2e
def test_the_probabilities_change_no_figure_and_are_stored_with_every_transcript(tmp_path):
    tiny = {"play": {"groups": 2, "members": 2}}
    for name, stores in (("with", True), ("without", False)):
        run = {"updates": 2, "move_probabilities": stores}
        panels = {"size": 2, "final_size": 4, "before": stores}
        recipe = small_recipe(run=run, evaluate=panels, **tiny)
        train(RunFolder.create(tmp_path / name, recipe).path, Callback(), never)
    for file in ("metrics.jsonl", "evaluations/after_test.json"):
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()
    folder = RunFolder.open(tmp_path / "with")
    for name in ("step_000002", "before_test", "after_test", "emptied_test"):
        places = turns_of(folder.read_episodes_of(name))
        assert set(by_place(read_moves(folder.path, name))) == set(places)
    assert check_run(folder).faults == ()
    without = RunFolder.open(tmp_path / "without")
    assert not list((without.path / "episodes").glob("*.moves.*"))
    assert "before" not in without.read_summary()
    assert {"after_test", "emptied_test"} < set(without.evaluation_names())
    assert "before_test" not in without.evaluation_names()
    assert check_run(without).faults == ()


def test_a_resumed_evaluation_has_the_probabilities_of_an_uninterrupted_one(tmp_path):
    """Transcripts hold no legal moves, so those of stored shards cannot be scored again."""
    recipe = build_recipe(
        {
            "environments": {"name": "kuhn_poker"},
            "opponents": {"train": STYLES},
            "play": {"groups": 2, "members": 2},
            "run": {"threads": 1},
        }
    )
    parts = build_components(recipe)
    metas = play_groups(parts.begin_play(), draw_tasks(recipe, 1), 5)
    files = []
    for name, shards in (("whole", (0, 1)), ("killed", (0, 1, 1))):  # the second shard was cut
        folder = RunFolder.create(tmp_path / name, recipe)
        for group in shards:
            store = TranscriptStore(folder, Ranks(), parts)
            shard = [meta for meta in metas if meta.group == group]
            store.write_panel("after_test", parts.agent(False), shard)
        assert folder.read_episodes_of("after_test") == metas
        assert set(by_place(read_moves(folder.path, "after_test"))) == set(turns_of(metas))
        files.append((folder.path / "episodes" / "after_test.moves.jsonl.gz").read_bytes())
    assert files[0] == files[1]


def test_damaged_probabilities_give_one_message(tmp_path):
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "step_000001.moves.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(RunError, match="is damaged"):
        read_moves(tmp_path, "step_000001")
    assert read_moves(tmp_path, "step_000002") == []
