"""Drafts (engines.drafts) change the number of steps and no reply, in both loops of the engine.

In float32 on a CPU. tests/test_gpu.py has the same for the kernels; TRITON_INTERPRET=1 runs them
here, where Triton is installed.
"""
# ruff: noqa: F811  (fixtures of test_engine_local are imported)

import json
import os
import random
from dataclasses import replace
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any

import int8_toys
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from test_engine_local import (  # noqa: F401
    END,
    VOCABULARY,
    answer,
    chat,
    llama,
    make_prompts,
    successor_llama,
)

from benchmarks import drafts as benchmark
from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.drafts import LONGEST, PAYS, PROBE, RECENT, ROWS, Drafts, propose, usual_number
from mage.engines.gpu import reference_ops
from mage.engines.gpu.state import DeviceState
from mage.engines.local import LocalEngine
from mage.play import play_groups
from mage.training.build import build_components
from mage.training.tasks import draw_tasks
from mage.types import Completion, Request

pytestmark = pytest.mark.timeout(3600)
LOOPS = pytest.mark.parametrize("ahead", [False, True], ids=["step by step", "one step ahead"])


@pytest.fixture(autouse=True)
def draft_often(monkeypatch):
    """Many sequences and many wrong guesses are no reason to stop here."""
    monkeypatch.setitem(ROWS, "cpu", 512)
    monkeypatch.setattr("mage.engines.drafts.PAYS", 0)


def guess(text: list[int], recent: list[int], most: int = 3) -> list[int]:
    """`propose` for one text with something unused behind it."""
    row, others = torch.tensor([[*text, 7, 7]]), torch.tensor(recent or [-1])
    return propose(row, torch.tensor([len(text) - 1]), others, most)[0].tolist()


@pytest.mark.parametrize(
    ("text", "recent", "draft"),
    [
        ([5, 6, 7, 8, 5, 6], [], [7, 8, 5]),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], [], [9, 2, 3]),  # three tokens before two
        ([2, 3, 9, 4, 2, 3, 8, 4, 2, 3], [], [8, 4, 2]),  # the newer of two
        ([1, 2, 1, 2], [], [1, 2, 1, 2, 1]),  # a repetition goes on
        ([1, 2, 3], [], [0, 0, 0]),
        ([1, 2, 3], [5, 2, 3, 4, 6, 9], [4, 6, 9]),
        ([2, 9, 1, 2], [1, 2, 4, 6, 8], [4, 6, 8]),  # a longer match elsewhere
        ([1, 2, 9, 1, 2], [1, 2, 4, 6, 8], [9, 1, 2]),  # its own text before others
        ([1, 2, 3], [5, 2, 3], [3, 3, 3]),  # behind the last reply is nothing
    ],
)
def test_a_draft_continues_the_longest_match_and_then_the_newest(text, recent, draft):
    assert guess(text, recent, len(draft)) == draft


def slow_guess(text: list[int], recent: list[int], most: int) -> list[int]:
    """The rule once more, with loops."""
    for size in range(min(LONGEST, len(text)), 0, -1):
        for source, last in ((text, len(text) - 1), (recent, len(recent))):
            for end in range(last, size - 1, -1):
                if source[end - size : end] == text[-size:]:
                    known = source + ([] if source is text else [source[-1]] * most)
                    while len(known) < end + most:
                        known = [*known, known[len(known) - (len(text) - end)]]
                    return known[end : end + most]
    return [0] * most


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(TEXT, st.lists(st.integers(0, 3), max_size=20), st.integers(1, 6))
def test_drafts_follow_the_rule(text, recent, most):
    assert guess(text, recent, most) == slow_guess(text, recent, most)


def test_recent_replies_start_again_when_their_room_is_full():
    drafts = Drafts(3, torch.device("cpu"))
    drafts.add(np.arange(RECENT - 2))
    drafts.add(np.array([70, 71, 72]))
    assert drafts.tokens[:4].tolist() == [70, 71, 72, 3]
    drafts.add(np.arange(RECENT + 5))
    assert (int(drafts.tokens[0]), drafts.end) == (5, RECENT)
    drafts.clear()
    assert set(drafts.tokens.tolist()) == {-1}


def test_drafts_are_made_for_small_batches_and_while_they_are_right(monkeypatch):
    monkeypatch.setitem(ROWS, "cpu", 32)
    monkeypatch.setattr("mage.engines.drafts.PAYS", PAYS)
    drafts = Drafts(3, torch.device("cpu"))
    assert [drafts.width(sequences) for sequences in (8, 9)] == [4, 1]
    assert Drafts(0, torch.device("cpu")).width(1) == 1
    for _ in range(4 * PROBE):
        drafts.count(12, 0)
    assert drafts.gain < PAYS
    widths = [drafts.width(4) for _ in range(4 * PROBE)]
    assert (widths.count(4), widths.count(1)) == (4, 4 * PROBE - 4)
    for _ in range(2 * PROBE):
        drafts.count(12, 6)
    assert drafts.width(4) == 4, "2.5 tokens a step"


def check_equal(one: list[Completion], other: list[Completion], tolerance: float = 1e-4) -> None:
    for left, right in zip(one, other, strict=True):
        assert replace(left, logprobs=()) == replace(right, logprobs=())
        assert left.logprobs == pytest.approx(right.logprobs, abs=tolerance)


def both(model: Any, chat: Chat, requests: list[Request], drafts: int, **options: Any) -> Any:
    """Replies without and with drafts are equal; returns both engines."""
    options = {"slots": 16, "context": 256} | options
    engines = [LocalEngine(model, chat, drafts=number, **options) for number in (0, drafts)]
    check_equal(*(answer(engine, requests) for engine in engines))
    assert engines[0].stats.drafted_tokens == 0
    return engines


@LOOPS
@pytest.mark.parametrize("drafts", [1, 7])
def test_a_repeated_text_takes_few_steps(drafts, ahead, chat):
    model = successor_llama(chat, "bé<ad> ")
    requests = [Request(chat.encode("x" * number + " bé"), 40, number, 0.0) for number in range(4)]
    plain, drafted = both(model, chat, requests, drafts, run_ahead=ahead)
    assert plain.stats.generated_tokens == drafted.stats.generated_tokens == 160
    assert drafted.stats.accepted_tokens > 0.6 * 160 * drafts / (1 + drafts)
    assert drafted.stats.steps < plain.stats.steps * (0.8 if drafts == 1 else 0.5)


@pytest.mark.e2e
@LOOPS
def test_sampled_replies_with_stop_texts_limits_and_truncation_are_equal(ahead, chat):
    """A model that continues its text with a probability of about 70 %."""
    model = successor_llama(chat, "bé<ad> ok<|im_end|>")
    rng = random.Random(0)
    requests = [
        Request(
            tuple(chat.encode("<ad> bé<" * rng.randrange(4) + "ok"[: rng.randrange(1, 3)])),
            1 + number % 30,
            number,
            temperature=(1.0, 1.5, 2.0, 0.0)[number % 4],
            top_p=(1.0, 0.9)[number < 30 and number % 5 == 0],
            top_k=(0, 7)[number < 30 and number % 7 == 0],
            stop=((), ("d>",), ("> b", "zz"))[number % 3],
        )
        for number in range(60)
    ]
    plain = answer(LocalEngine(model, chat, slots=16, context=256, run_ahead=ahead), requests)
    for options in ({}, {"slots": 3, "max_batch_tokens": 20}, {"prefix_cache": False}):
        room = {"slots": 16, "context": 256} | options
        drafted = LocalEngine(model, chat, run_ahead=ahead, drafts=4, **room)
        check_equal(plain, answer(drafted, requests))
        assert 0 < drafted.stats.accepted_tokens < drafted.stats.drafted_tokens
    assert {reply.finish for reply in plain} == {"stop", "eos", "length"}


@pytest.mark.e2e
@LOOPS
def test_replies_that_fill_the_context_are_equal(ahead, chat):
    model = successor_llama(chat, "bé<ad> ")
    requests = [
        Request(chat.encode(" bé<ad>" * 3)[:length], 99, length, temperature)
        for length in (1, 6, 11, 15, 18, 20, 21, 22, 23)
        for temperature in (0.0, 1.5)
    ]
    options: dict[str, Any] = {"run_ahead": ahead, "context": 24}
    plain = answer(LocalEngine(model, chat, slots=16, **options), requests)
    for drafts, slots in product((2, 9), (2, 16)):
        engine = LocalEngine(model, chat, slots=slots, drafts=drafts, **options)
        check_equal(plain, answer(engine, requests))


@pytest.mark.e2e
@pytest.mark.parametrize(("adapter", "ahead"), [(False, True), (True, False), (True, True)])
def test_growing_conversations_over_refreshes_are_equal(adapter, ahead, llama, chat):
    """Random weights; prompts repeat, so that slots are continued and copied."""
    model: Any = llama
    if adapter:
        lora = LoraConfig(target_modules=["q_proj"])
        model = get_peft_model(successor_llama(chat, "bé<ad> "), lora)
    engines = [
        LocalEngine(model, chat, slots=6, context=256, run_ahead=ahead, drafts=drafts)
        for drafts in (0, 3)
    ]
    prompts = [(*ids, *ids)[:60] for ids in make_prompts(8)]
    for turn in range(3):
        requests = [
            Request(prompt, 12, 50 * turn + number, 0.5 * (number % 3))
            for number, prompt in enumerate(prompts)
        ]
        replies = [answer(engine, requests) for engine in engines]
        check_equal(*replies)
        said = zip(prompts, replies[0], strict=True)
        prompts = [(*prompt, *reply.token_ids, *prompt[:5]) for prompt, reply in said]
        if turn == 1:
            for engine in engines:
                engine.release()
                engine.refresh(1)
    assert engines[1].stats.reused_tokens > 0
    assert engines[1].stats.accepted_tokens > 0


@LOOPS
def test_open_sequences_with_drafts_continue_after_a_refresh(ahead, chat):
    model = successor_llama(chat, "bé<ad> ")
    requests = [Request(chat.encode(" bé<ad> "), 30, seed, 1.5) for seed in range(4)]
    replies = []
    for drafts in (0, 3):
        engine = LocalEngine(model, chat, slots=8, context=64, run_ahead=ahead, drafts=drafts)
        found: dict[Request, Completion] = {}
        for request in requests:
            engine.submit(request)
        for _ in range(3):
            found.update(engine.step())
        engine.refresh(0)
        while len(found) < len(requests):
            found.update(engine.step())
        replies.append([found[request] for request in requests])
    check_equal(*replies)


def compare_kernels(kernels: ModuleType, device: str) -> None:
    """Kernels draft, accept, sample and attend as the plain versions do."""
    torch.manual_seed(0)

    def whole(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, device=device)

    slots, spare, context, vocabulary = whole(0, 1, 2, 3, 4, 5, 6), 6, 1500, 300
    tokens = torch.randint(0, 3, (7, context), device=device)
    tokens[2] = torch.randint(5, 9, (context,), device=device)
    recent = torch.full((2000,), -1, device=device)
    recent[:1200] = torch.randint(3, 9, (1200,), device=device)
    for width in (2, 6):
        found = []
        for side in (kernels, reference_ops):
            state = DeviceState.make(6, torch.device(device))
            state.filled.copy_(whole(0, 2, 1100, 1030, context - 3, context - 1, 0))
            state.token.copy_(whole(1, 2, 6, 2, 0, 1, 0))
            state.seed.copy_(torch.arange(7) * 7919 - 9)
            state.temperature[1] = 0
            ids, owners, positions = side.draft(slots, state, tokens, recent, width)
            assert owners.view(7, width)[:, 0].tolist() == slots.tolist()
            assert int(positions.max()) == context - 1
            logits = torch.randn(7 * width, vocabulary, generator=torch.Generator().manual_seed(1))
            # The draft is likely, so that some of it is right.
            bonus = 9 * torch.nn.functional.one_hot(ids.roll(-1), vocabulary)
            logits = logits.to(device) + bonus
            answers = torch.zeros(2, 7 * width, dtype=torch.int32, device=device)
            side.choose(logits, slots, state, answers, True, width)
            before = answers[0].clone()
            side.accept(ids, slots, state, context, answers, width)
            found.append(
                (ids, owners, positions, before, answers[0], state.token, state.filled, state.index)
            )
        for one, other in zip(*found, strict=True):
            assert one.tolist() == other.tolist()
        kept = (answers[0] >= 0).view(7, width).sum(1)
        assert kept[4].item() <= 2
        assert kept[5].item() == 1, "the context is full"
        assert 7 < kept.sum() < 7 * width
        assert (
            state.filled[:6].tolist()
            == (whole(0, 2, 1100, 1030, context - 3, context - 1) + kept[:6]).tolist()
        )
        assert state.filled[spare] == 0
        for heads, kv_heads, size in ((9, 3, 64), (4, 2, 16)):
            keys, values = torch.randn(2, 7, 200, kv_heads, size, device=device)
            filled = whole(0, 5, 64, 126, 150, 199, 0)
            for count, shared in ((7, whole(0, 0)), (180, whole(0, 0)), (2, whole(4, 128))):
                whose = torch.randint(4 if shared[1] else 0, 6, (count,), device=device)
                query = torch.randn(count * width, heads, size, device=device)
                given = (query, keys, values, whose, filled, shared, size**-0.5)
                torch.testing.assert_close(
                    kernels.attend_decode(*given, width=width),
                    reference_ops.attend_decode(*given, width=width),
                    atol=2e-5,
                    rtol=2e-5,
                )


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_interpreted_kernels_compute_what_the_plain_versions_do():
    pytest.importorskip("triton")
    compare_kernels(import_module("mage.engines.gpu.kernels"), "cpu")


@pytest.mark.e2e
def test_keys_in_8_bits_take_drafts(monkeypatch):
    int8_toys.allow_small_models(monkeypatch)
    model = int8_toys.make_model("qwen2", "cpu", torch.float32)
    requests = [
        Request((*request.prompt_ids, *request.prompt_ids[:20]), 12, request.seed, 0.3)
        for request in int8_toys.make_requests((64, 100), 6, 10)
    ]
    plain, drafted = (
        int8_toys.make_engine(model, "int8", drafts=drafts, context=256) for drafts in (0, 3)
    )
    # Rounding in the last bit of float32 may move a number in 8 bits by one.
    check_equal(answer(plain, requests), answer(drafted, requests), tolerance=2e-3)
    assert drafted.stats.accepted_tokens > 0


def test_steps_with_top_p_have_no_drafts_in_the_loop_of_a_gpu(chat):
    model = successor_llama(chat, "bé<ad> ")
    requests = [Request(chat.encode(" bé<ad> "), 6, seed, 0.5, top_p=0.9) for seed in range(4)]
    _, drafted = both(model, chat, requests, 7, slots=4, context=32, run_ahead=True)
    assert drafted.stats.drafted_tokens == 0


@LOOPS
def test_a_large_batch_is_computed_without_drafts(ahead, chat):
    model = successor_llama(chat, "bé<ad> ")
    requests = [Request(chat.encode(" bé<ad> "), 6, seed, 0.0) for seed in range(80)]
    _, drafted = both(model, chat, requests, 7, slots=80, context=32, run_ahead=ahead)
    assert drafted.stats.drafted_tokens == 0


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("recipe", "change", "ahead"),
    [
        ("kuhn_reflections", "", True),
        ("tic_tac_toe", "--memory.keep=both", False),
        ("demo", "--memory.keep=history", True),
        ("doors", "", False),
    ],
)
def test_meta_episodes_are_equal(recipe, change, ahead):
    """All turns of two groups of two members with the model of the recipe."""
    played, stats = [], []
    words = ["--play.groups=2", "--play.members=2", "--run.device=cpu", "--engines.slots=8"]
    words += [f"--engines.run_ahead={str(ahead).lower()}", *change.split()]
    for drafts in (0, 4):
        made = load_recipe(recipe, [*words, f"--engines.drafts={drafts}"])
        parts = build_components(made)
        metas = play_groups(parts.begin_play(), draw_tasks(made, 1), 0)
        turns = [turn for meta in metas for episode in meta.episodes for turn in episode.turns]
        played.append([turn.completion for turn in turns])
        stats.append(parts.engine.stats)  # type: ignore[attr-defined]
    check_equal(*played)
    assert stats[1].accepted_tokens > 0
    assert stats[1].steps < stats[0].steps


def test_a_negative_number_is_refused(llama, chat):
    with pytest.raises(UserError, match="drafts=-1: the smallest allowed values are 1, 2, 1 and 0"):
        LocalEngine(llama, chat, drafts=-1)


@pytest.mark.e2e
def test_the_benchmark_measures_steps_and_play(tmp_path):
    out = tmp_path / "drafts.json"
    benchmark.main(["--size", "tiny", "--rounds", "1", "--out", str(out)])
    records = json.loads(out.read_text())["records"]
    assert [record["case"] for record in records] == ["2 x (24 + 16)", "4 x (24 + 16)"]
    for record in records:
        assert record["step_tokens"] > 1.5, "random weights repeat themselves"
        assert record["accepted"] > 0.2
    words = ["--size=tiny", "--rounds=1", "--recipe=kuhn_reflections", f"--out={out}"]
    benchmark.main([*words, "--change=--run.device=cpu"])
    (record,) = json.loads(out.read_text())["records"]
    assert record["part"] == "play"
    assert record["steps_saved"] > 0
    assert 0 < record["accepted"] < 1


def test_the_default_is_drafts_for_small_models_on_a_gpu_only(llama, chat):
    device = {name: torch.device(name) for name in ("cpu", "cuda")}
    small, large = 135_000_000, 4_000_000_000
    assert usual_number(small, device["cuda"]) == 4
    assert usual_number(large, device["cuda"]) == 0
    assert usual_number(small, device["cpu"]) == 0, "results on a CPU stay the same"
    assert LocalEngine(llama, chat, slots=2, context=32).drafts.number == 0


def test_the_default_drafts_in_the_loop_of_a_gpu_only(llama, chat, monkeypatch):
    monkeypatch.setattr("mage.engines.local.usual_number", lambda *_: 4)
    made = [LocalEngine(llama, chat, slots=2, context=32, run_ahead=ahead) for ahead in (0, 1)]
    assert [engine.drafts.number for engine in made] == [0, 4]
