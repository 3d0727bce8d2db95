"""The benchmarks run at their smallest size, and both sides do the same work."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    barrier,
    generate,
    learner_profile,
    lora_gradient,
    packing,
    prefix_cache,
    trl,
)
from benchmarks.measure import Comparison, Skipped, compare, take_turns
from benchmarks.workload import make_recipe, play
from mage.config.loading import change_recipe
from mage.engines.base import Engine
from mage.learn.trainable import Adapters
from mage.models.loading import load_model
from mage.training.build import Components, build_components
from mage.types import Request, Turn


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_ratio_is_the_median_over_rounds_and_the_first_round_is_not_counted() -> None:
    ours, theirs = iter([99.0, 1.0, 2.0, 1.0]), iter([1.0, 4.0, 4.0, 3.0])
    found = compare(
        "sum", "case", ("a", "b"), "items", 8, (lambda: next(ours), lambda: next(theirs)), rounds=3
    )
    assert found.ratios == (4.0, 2.0, 3.0)
    assert found.ratio == 3.0
    assert (found.ours, found.theirs) == (8.0, 2.0)  # medians: 1 s and 4 s for 8 items
    assert "a 8.00 items/s" in found.line()
    assert "ratio  3.0 (2.0 to 4.0)" in found.line()


def test_the_ways_alternate() -> None:
    order: list[str] = []
    take_turns([lambda: order.append("a") or 0.0, lambda: order.append("b") or 0.0], rounds=1)
    assert order == ["a", "b", "a", "b"]


def test_a_missed_target_is_reported() -> None:
    line = Comparison("x", "y", ("a", "b"), "u", 1.0, 1.0, (1.9,), target=2.0).line()
    assert "MISSED: target 2" in line


@pytest.mark.e2e
def test_packed_and_unpacked_updates_agree() -> None:
    (found,) = packing.measure((("kuhn_poker", "reflections"),), groups=1, rounds=1)
    logprob, loss = (float(part.split()[-1]) for part in found.note.rsplit(": ", 1)[1].split(","))
    assert logprob < 1e-4  # float32 against itself in another order of summation
    assert loss < 1e-4


@pytest.mark.e2e
def test_replies_do_not_depend_on_the_prefix_cache() -> None:
    (found,) = prefix_cache.measure((("kuhn_poker", "reflections"),), groups=1, rounds=1)
    _assert_all_same(found)


@pytest.mark.e2e
def test_replies_do_not_depend_on_a_barrier() -> None:
    (found,) = barrier.measure((("kuhn_poker", 1, False),), rounds=1)
    _assert_all_same(found)


def test_thinking_takes_longer_and_changes_no_reply() -> None:
    parts = build_components(make_recipe("kuhn_poker", "reflections", 1))
    requests = generate.record(parts)[0]
    plain = _answers(parts.engine, requests)
    before = parts.engine.stats.generated_tokens
    assert _answers(barrier.Thinking(parts.engine), requests) == plain
    replied = sum(map(len, plain.values()))
    assert parts.engine.stats.generated_tokens - before >= replied + barrier.SHORTEST * len(
        requests
    )


def _answers(engine: Engine, requests: list[Request]) -> dict[Request, tuple[int, ...]]:
    for request in requests:
        engine.submit(request)
    found: dict[Request, tuple[int, ...]] = {}
    while len(found) < len(requests):
        found |= {request: completion.token_ids for request, completion in engine.step()}
    return found


def _assert_all_same(found: Comparison) -> None:
    same, _, of = found.note.rsplit("; ", 1)[1].split()[:3]
    assert int(same) == int(of) > 0


def test_a_barrier_returns_all_replies_together() -> None:
    parts = build_components(make_recipe("kuhn_poker", "reflections", 1))
    held = barrier.Barrier(parts.engine)
    requests = [request for conversation in generate.record(parts) for request in conversation][:20]
    assert len({request.max_tokens for request in requests}) == 2, (
        "moves and notes: they do not end at the same step"
    )
    for request in requests:
        held.submit(request)
    assert {request for request, _ in held.step()} == set(requests)


@pytest.mark.e2e
def test_generate_gets_the_prompts_of_play_and_gives_the_replies_of_the_engine() -> None:
    """With top_k = 1 the padded batches give the replies of the engine."""
    parts = build_components(
        change_recipe(make_recipe("kuhn_poker", "reflections", 1), ["--agent.top_k=1"])
    )
    conversations = generate.record(parts)
    expected = {turn.prompt_ids: turn.completion.token_ids for turn in _turns(parts)}
    model = load_model(parts.recipe.model_folder(), "float32", "cpu")
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
def test_generate_runs_in_all_four_ways() -> None:
    found = list(generate.measure((("kuhn_poker", "reflections"),), groups=1, rounds=1))
    assert [line.case.split(": ")[1] for line in found] == [
        "play / turns",
        "play / sorted",
        "batches / sorted",
        "no reuse / sorted",
    ]


@pytest.mark.e2e
def test_both_trainers_get_the_same_work() -> None:
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


@pytest.mark.e2e
def test_only_the_projected_way_computes_the_gradients_of_whole_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round to warm up and one that counts; one meta-episode is one micro-batch."""
    collect, whole = Adapters.collect, list[bool]()

    def noted(trainable: Adapters) -> None:
        whole.append(any(weight.grad is not None for weight in trainable.model.parameters()))
        collect(trainable)

    monkeypatch.setattr(Adapters, "collect", noted)
    monkeypatch.setattr(
        lora_gradient, "TINY", replace(lora_gradient.TINY, metas=1, turns=2, micro=(1024,))
    )
    lora_gradient.main(["--shape", "tiny", "--rounds", "1", "--out", str(tmp_path / "found.json")])
    records = json.loads((tmp_path / "found.json").read_text())["records"]
    assert [(record["round"], record["way"]) for record in records] == [
        (0, "direct"), (0, "projected"), (1, "direct"), (1, "projected"),
    ]  # fmt: skip
    assert whole == [False, True, False, True]
    # the prompt, a reply, an observation and a reply, each token once
    assert {record["computed_tokens"] for record in records} == {600 + 8 + 20 + 8}


def test_the_names_of_kernels_give_their_class() -> None:
    """Names from profiles of both shapes on an H200."""
    names = {
        "triton_tem_fused_flex_attention_backward_select_backward_7": "attention backward",
        "triton_per_fused_flex_attention_backward_select_backward_6": "attention backward",
        "triton_tem_fused_flex_attention_split_with_sizes_transpose_4": "attention forward",
        "triton_poi_fused_mul_silu_split_9": "other Triton kernels",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT": "matrix products",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x32x8": "matrix products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix products",
        "Memcpy DtoD (Device -> Device)": "everything else",
        "void at::native::vectorized_elementwise_kernel<4>": "everything else",
    }
    assert {name: learner_profile.class_of(name) for name in names} == names


@pytest.mark.e2e
@pytest.mark.skipif(torch.cuda.is_available(), reason="counts the operators of a CPU")
def test_a_profile_contains_all_products_and_attention_of_an_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four rows are one micro-batch. A layer has 4 groups of linear layers with 6 products each."""
    few = ("--change=--play.groups=1", "--change=--environments.max_turns=2")
    sizes = ("--shape=tiny", "--reply-tokens=4", "--rows=4")
    learner_profile.main([*sizes, *few, "--out", str(tmp_path / "found.json")])
    (record,) = json.loads((tmp_path / "found.json").read_text())["records"]
    launches = {one["name"]: one["launches"] for one in record["classes"]}
    assert launches["attention forward"] == launches["attention backward"] == 2  # layers
    products = {one["name"]: one["launches"] for one in record["longest"]}["aten::mm"]
    assert products == 2 * 4 * 6 + 2  # and two of the head
    assert record["scored_tokens"] == 4 * 4
    assert record["computed_tokens"] <= record["padded_tokens"] < record["computed_tokens"] + 128
    # a layer: attention 64 x 16 x (4 + 4 + 2 + 2) weights, MLP 3 x 64 x 128; vocabulary 1,024
    assert record["product operations"] == (
        4 * 2 * (12_288 + 24_576) * record["padded_tokens"] + 4 * 1024 * 64 * 16
    )
    assert sum(one["seconds"] for one in record["classes"]) == pytest.approx(record["kernel s"])
    assert "matrix products" in capsys.readouterr().out


def test_an_unknown_benchmark_gives_a_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["paking"]) == 2
    assert "benchmarks are packing, prefix_cache" in capsys.readouterr().err
