"""The benchmarks run at their smallest size, and both sides do the same work."""

import json
from unittest import mock

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    adapters,
    busy,
    formats,
    generate,
    host,
    packing,
    paper_scale,
    prefixes,
    trl,
    vllm,
)
from benchmarks.measure import Comparison, Skipped, compare, take_turns
from benchmarks.workload import make_recipe, play
from mage.config.loading import change_recipe
from mage.models.base import model_folder
from mage.models.loading import load_model
from mage.training.build import Components, build_components
from mage.types import Turn


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_ratio_is_the_median_over_rounds_and_the_first_round_is_not_counted():
    ours, theirs = iter([99.0, 1.0, 2.0, 1.0]), iter([1.0, 4.0, 4.0, 3.0])
    found = compare(
        "sum", "case", ("a", "b"), "items", 8, (lambda: next(ours), lambda: next(theirs)), rounds=3
    )
    assert found.ratios == (4.0, 2.0, 3.0)
    assert found.ratio == 3.0
    assert (found.ours, found.theirs) == (8.0, 2.0)  # medians: 1 s and 4 s for 8 items
    assert "a 8.00 items/s" in found.line()
    assert "ratio  3.0 (2.0 to 4.0)" in found.line()


def test_the_ways_alternate():
    order: list[str] = []
    take_turns([lambda: order.append("a") or 0.0, lambda: order.append("b") or 0.0], rounds=1)
    assert order == ["a", "b", "a", "b"]


def test_a_missed_target_is_reported():
    line = Comparison("x", "y", ("a", "b"), "u", 1.0, 1.0, (1.9,), target=2.0).line()
    assert "MISSED: target 2" in line


def test_the_host_benchmark_plays_and_learns_from_the_script():
    changes = ["--run.workers=1", "--play.groups=2", "--play.members=2"]
    update = host.Update(host.read_recipe("kuhn_poker", changes), None)
    update.begin()
    seconds = update()
    turns = [turn for meta in update.metas for one in meta.episodes for turn in one.turns]
    scripted = list(update.replay.replies.values())
    assert sorted(turn.completion.token_ids for turn in turns) == sorted(scripted)
    assert update.shape.rows == len(turns) == update.shape.turns
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])


def test_the_benchmark_of_a_busy_gpu_counts_the_updates_after_the_first(tmp_path):
    """A function that says 25 % all the time stands for the GPU's."""
    small = ["--play.groups=2", "--play.members=2", "--run.threads=1", "--run.device=cpu"]
    found = busy.measure("kuhn_poker", 3, 1, small, lambda: 0.25)
    assert found["busy"] == pytest.approx(0.25)
    assert {found["busy_play"], found["busy_learn"]} <= {0.25, None}  # None: shorter than .1 s
    assert found["updates"] == 2
    assert found["total"] >= found["play"] >= found["play_engine"] > 0
    assert found["learn"] > 0


def test_a_share_is_the_mean_of_the_samples_between_two_times():
    sampler = busy.Sampler(lambda: 1.0)
    sampler.close()
    sampler.samples = [(1.0, 0.2), (2.0, 0.4), (3.0, 0.6), (4.0, 1.0)]
    assert sampler.share((2.0, 3.5)) == pytest.approx(0.5)
    assert sampler.share((5.0, 6.0)) is None


def test_formats_with_fewer_bits_have_larger_errors():
    found = {one["inputs"]: one["mean"] for one in formats.measure("embedded", 160)}
    exact, *rough = found.values()
    assert 0 < exact < min(rough)
    numbers = torch.linspace(-3, 3, 100)[None]
    for kind, most in ((formats.in_int8, 3 / 127), (formats.in_e4m3, 3 / 14)):
        assert float((kind(numbers) - numbers).abs().max()) <= most / 2 * 1.01


def test_a_shared_key_is_counted_once():
    """As many keys as different beginnings of the sequences."""
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(0, 2, rng.integers(1, 9)).tolist()) for _ in range(20)]
    starts = [{text[:end] for end in range(1, len(text) + 1)} for text in texts]
    common = np.array([[len(one & other) for other in starts] for one in starts])
    read = sum(map(len, texts)) - prefixes.once(common).sum()
    assert read == pytest.approx(len(set().union(*starts)))


def test_all_keys_of_an_update_are_counted():
    changes = ["--run.workers=1", "--play.groups=2", "--play.members=2"]
    counts, metas = prefixes.count(host.read_recipe("kuhn_poker", changes), None, 8)
    turns = [turn for meta in metas for one in meta.episodes for turn in one.turns]
    # The first token of a reply comes from its prompt. A reply that ended is noticed a step later,
    # so that step may have read its keys too, unless no more tokens were allowed.
    needed = [range(len(turn.prompt_ids) + 1, len(turn.prompt_ids) + turn.tokens) for turn in turns]
    late = sum(len(turn.prompt_ids) + turn.tokens for turn in turns)
    keys = dict(zip(prefixes.WAYS, counts.keys, strict=True))
    assert sum(map(sum, needed)) <= keys["apart"] <= sum(map(sum, needed)) + late
    assert sum(counts.parts.values()).tolist() == pytest.approx(counts.keys.tolist())
    assert keys["tree"] < keys["groups"] < keys["apart"]
    assert keys["tree"] <= keys["today"] < keys["apart"]
    assert counts.bound("int8") < counts.bound("bfloat16") < keys["today"] / keys["tree"]
    assert counts.prefills >= 3, "one episode begins after another"
    assert counts.prefilled < sum(len(turn.prompt_ids) for turn in turns), "most is in the cache"
    assert counts.prefilled < counts.padded


@pytest.mark.e2e
def test_an_update_of_a_paper_recipe_is_measured_after_a_short_one(tmp_path):
    """The short update has one episode of three, and is not a record."""
    learned: list[int] = []

    class Counted(paper_scale.MeasuredTrainer):
        def _learn(self, number, samples, timer):
            learned.append(len(samples))
            return super()._learn(number, samples, timer)

    out = tmp_path / "scale.json"
    words = ["--shape", "tiny", "--reply-tokens", "4", "--cases", "kuhn_poker", "--memory", "50"]
    with mock.patch.object(paper_scale, "MeasuredTrainer", Counted):
        paper_scale.main([*words, "--warm", "--updates", "1", "--out", str(out)])
    (record,) = json.loads(out.read_text())["records"]
    assert (record["update"], record["memory"], record["overflows"]) == (1, 50.0, 0)
    assert record["samples"] == learned[1] > 2 * learned[0] > 0
    assert record["total"] >= record["play"] + record["learn"] > 0


def test_the_table_beside_vllm_pairs_the_sides_of_a_format():
    about = {"model": "4b", "case": "2 x (3 + 4)"}
    rows = [("ours", "int8", [4.0, 5.0, 6.0], 1.0), ("vllm", "int8", [2.0, 2.0, 4.0], 2.0)]
    records = [
        about | {"side": side, "format": kind, "rates": rates, "memory": memory}
        for side, kind, rates, memory in [*rows, ("ours", "model", [1.0], 1.0)]
    ]
    assert list(vllm.table(records))[2:] == [
        "| 4b | int8 | 2 x (3 + 4) | 6 / 5 | 4 / 2 | 1.50 / 2.50 | 1 / 2 |"
    ]


@pytest.mark.e2e
def test_packed_and_unpacked_updates_agree():
    (found,) = packing.measure((("kuhn_poker", "history"),), groups=1, rounds=1)
    logprob, loss = (float(part.split()[-1]) for part in found.note.rsplit(": ", 1)[1].split(","))
    assert logprob < 1e-4  # float32 against itself in another order of summation
    assert loss < 1e-4


@pytest.mark.e2e
def test_generate_gets_the_prompts_of_play_and_gives_the_replies_of_the_engine():
    """At a very low temperature the padded batches give the replies of the engine."""
    parts = build_components(
        change_recipe(make_recipe("kuhn_poker", "reflections", 1), ["--agent.temperature=0.0001"])
    )
    conversations = generate.record(parts)
    expected = {turn.prompt_ids: turn.completion.token_ids for turn in _turns(parts)}
    model = load_model(model_folder(parts.recipe), "float32", "cpu")
    for batch in generate.by_turns(conversations):
        padded = generate.pad(batch, parts.chat, model.config.pad_token_id)
        ends = {"max_new_tokens": padded.max_new_tokens, "eos_token_id": padded.eos_token_id}
        out = model.generate(
            padded.input_ids, attention_mask=padded.attention_mask, do_sample=False, **ends
        )
        for request, row in zip(batch, out[:, padded.input_ids.shape[1] :].tolist(), strict=True):
            reply = expected[request.prompt_ids]
            assert tuple(row[: len(reply)]) == reply


def _turns(parts: Components) -> list[Turn]:
    return [
        turn
        for meta in play(parts)
        for episode in meta.episodes
        for turn in (episode.reflection, *episode.turns)
        if turn is not None
    ]


@pytest.mark.e2e
def test_generate_runs_in_all_three_ways():
    found = list(generate.measure((("kuhn_poker", "history"),), groups=1, rounds=1))
    ways = ["play / turns", "play / sorted", "no reuse / sorted"]
    assert [line.case.split(": ")[1] for line in found] == ways


@pytest.mark.e2e
def test_both_trainers_get_the_same_work():
    if not trl.is_installed():
        with pytest.raises(Skipped, match="pip install"):
            list(trl.measure())
        pytest.skip("trl is not installed")
    (found,) = trl.measure(("free/8",), updates=1, rounds=1)
    assert found.note.startswith("8 rollouts")
    ours, theirs = (float(word) for word in found.note.split("; ")[1].split()[:3:2])
    assert ours == pytest.approx(
        theirs, rel=0.2
    )  # the same model and limit: completions are about equally long


def test_adapters_replay_the_same_moves_as_the_libraries():
    pytest.importorskip("gymnasium")
    pytest.importorskip("textarena")
    found = list(adapters.measure(games=2, rounds=1))
    assert [one.case for one in found] == ["lake", "board", "again", "worlds"]
    assert all(one.ours > 0 for one in found)


def test_an_unknown_benchmark_gives_a_clear_message(capsys):
    assert command.main(["paking"]) == 2
    assert "benchmarks are packing, generate" in capsys.readouterr().err
