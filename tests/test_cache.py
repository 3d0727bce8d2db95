"""Keys and values in 8 bits (engines.cache = "fp8"), on a CPU with the plain operations.

tests/test_gpu.py has the same for the kernels. TRITON_INTERPRET=1 runs them here, where Triton is
installed.
"""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch
from fp8_toys import (
    KINDS,
    LENGTHS,
    allow_small_models,
    answer,
    compare_kernels,
    make_engine,
    make_model,
    make_requests,
    mean_gaps,
)
from transformers import LlamaForCausalLM, PreTrainedModel

from benchmarks import cache
from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.gpu import reference_ops
from mage.engines.pool import FP8, KeyValuePool
from mage.models.shapes import PRESETS
from mage.training.engine_probe import EXACT, HALF, EngineProbe
from mage.training.memory_plan import GB, plan_memory


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    allow_small_models(monkeypatch)
    return make_model("llama", "cpu", torch.float32)


def test_a_vector_is_scaled_so_that_its_largest_number_fits() -> None:
    """Worked by hand: 1,000 needs 2^2 (250 <= 448 < 500); 3 mantissa bits round 1,000 / 4 to 256.

    .01 needs 2^-15 (.01 * 32,768 = 327.7, rounded to 320).
    """
    cache, exponents = torch.zeros(1, 3, 2, 4).to(FP8), torch.zeros(1, 2, 3, dtype=torch.int8)
    rows = torch.zeros(1, 2, 4)
    rows[0, 0, :2], rows[0, 1, 2] = torch.tensor([1000.0, -3.0]), 0.01
    where = torch.tensor([0]), torch.tensor([1])
    reference_ops.store(where, rows, cache, exponents)
    assert exponents[0, :, 1].tolist() == [2, -15]
    assert cache[0, 1].float().tolist() == [[256, -0.75, 0, 0], [0, 0, 320, 0]]
    assert not exponents[0, :, [0, 2]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_stay_near_those_of_the_models_format(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_small_models(monkeypatch)
    model = make_model(kind, "cpu", torch.float32)
    requests = make_requests(LENGTHS, 4, 8)
    exact, small = (answer(make_engine(model, cache), requests) for cache in ("model", "fp8"))
    gaps = mean_gaps(exact, small, 4)
    assert all(1e-4 < gap < 0.1 for gap in gaps), "8 bits are used, and they are close"


def test_replies_do_not_depend_on_the_prefix_cache_or_on_the_number_of_slots(
    model: PreTrainedModel,
) -> None:
    requests = make_requests((64, 100), 6, 10)
    replies = [
        answer(make_engine(model, "fp8", **options), requests)
        for options in ({}, {"prefix_cache": False}, {"slots": 2}, {"max_batch_tokens": 50})
    ]
    for other in replies[1:]:
        assert [one.token_ids for one in other] == [one.token_ids for one in replies[0]]
        for one, first in zip(other, replies[0], strict=True):
            assert one.logprobs == pytest.approx(first.logprobs, abs=1e-4)


def test_a_continued_prompt_reuses_its_keys_also_after_a_release(model: PreTrainedModel) -> None:
    engine = make_engine(model, "fp8")
    (request,) = make_requests((200,), 1, 12)
    (before,) = answer(engine, [request])
    (longer,) = make_requests((200,), 1, 4)
    longer = type(longer)(request.prompt_ids + before.token_ids, 4, 7)
    (reused,) = answer(engine, [longer])
    assert engine.stats.reused_tokens > 200
    engine.release()
    engine.refresh(1)
    (computed,) = answer(engine, [longer])
    assert reused.token_ids == computed.token_ids
    assert reused.logprobs == pytest.approx(computed.logprobs, abs=1e-4)


def test_a_small_model_is_refused_and_a_cpu_keeps_the_models_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model("llama", "cpu", torch.float32)
    with pytest.raises(UserError, match=r"at least 1 B parameters, and this one has 0\.00 B"):
        make_engine(model, "fp8")
    with pytest.raises(UserError, match=r"this one has 0\.13 B"):
        plan("smollm2-135m", "--engines.cache=fp8")
    monkeypatch.setattr("mage.models.shapes.LEAST_PARAMETERS", 0)
    with pytest.warns(UserWarning, match="the CPU does not compute with 8-bit floats"):
        engine = make_engine(model, "fp8")
    assert engine.pool.store.dtype == torch.float32
    allow_small_models(monkeypatch)
    with pytest.raises(UserError, match=r"needs engines\.run_ahead"):
        make_engine(model, "fp8", run_ahead=False)


def test_a_model_whose_keys_have_a_bias_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_small_models(monkeypatch)
    config = make_model("llama", "cpu", torch.float32).config
    config.attention_bias = True
    with pytest.raises(UserError, match="not for models whose keys have a bias"):
        make_engine(LlamaForCausalLM(config).eval(), "fp8")


def plan(model: str, *changes: str):  # type: ignore[no-untyped-def]
    recipe = load_recipe("paper_alfworld", ["--learn.lora_rank=16", *changes])
    return plan_memory(recipe, PRESETS[model], 78 * GB)


def test_the_memory_plan_counts_half_the_bytes_and_finds_more_slots() -> None:
    """A token of Qwen3-4B: 36 layers, keys and values, 8 heads of 128 bytes and an exponent."""
    wide, small = plan("qwen3-4b"), plan("qwen3-4b", "--engines.cache=fp8")
    pool = KeyValuePool(36, 8, 128, (1, 1), torch.bfloat16, torch.device("meta"), fp8=True)
    assert pool.token_bytes == 36 * 2 * 8 * 129
    context = load_recipe("paper_alfworld").engines.options["context"]
    assert small.static.slot == context * pool.token_bytes
    assert wide.static.slot / small.static.slot == pytest.approx(256 / 129)
    assert wide.slots < small.slots == 64
    assert small.fits


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_interpreted_kernels_compute_what_the_plain_versions_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter runs no assembler and rounds some numbers down to the next power of two."""
    pytest.importorskip("triton")
    kernels, widen = (
        import_module("mage.engines.gpu.kernels"),
        import_module("fp8_interpreted").widen,
    )
    monkeypatch.setattr("mage.engines.gpu.fp8_kernels._widen", widen)
    compare_kernels(kernels, "cpu", exact_bytes=False)


def test_the_benchmark_measures_both_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allow_small_models(monkeypatch)
    out = tmp_path / "cache.json"
    cache.main(["--size", "tiny", "--rounds", "1", "--out", str(out)])
    records = json.loads(out.read_text())["records"]
    assert [record["cache"] for record in records if record["part"] != "mismatch"] == [
        *("model", "fp8"),
        *("model", "fp8"),
        *("model", "fp8"),
    ]
    gaps = {
        (one["cache"], one["length"]): one["mismatch"]
        for one in records
        if one["part"] == "mismatch"
    }
    for length in (80, 128):
        assert gaps["model", length] < 1e-5 < gaps["fp8", length] < 0.1


def test_the_probe_of_the_engine_allows_for_8_bits(model: PreTrainedModel) -> None:
    limits = [EngineProbe(make_engine(model, name), model, 1.0).limits for name in ("model", "fp8")]
    assert limits == [EXACT, HALF]
