"""Keys and values in 8 bits (engines.cache = "int8"), on a CPU with the plain operations.

tests/test_gpu.py has the same for the kernels. TRITON_INTERPRET=1 runs them here, where Triton is
installed.
"""

import json
import os
from importlib import import_module

import pytest
import torch
from int8_toys import (
    KINDS,
    allow_small_models,
    answer,
    compare_kernels,
    make_engine,
    make_model,
    make_requests,
    mean_gaps,
)

from benchmarks import cache
from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.gpu import reference_ops
from mage.engines.gpu.state import decode_tuning
from mage.engines.pool import KeyValuePool, Scales
from mage.models.shapes import PRESETS
from mage.training.engine_probe import EXACT, HALF, EngineProbe
from mage.training.memory_bytes import GB
from mage.training.memory_plan import plan_memory


@pytest.fixture
def model(monkeypatch):
    allow_small_models(monkeypatch)
    return make_model("llama", "cpu", torch.float32)


def test_a_vector_is_scaled_so_that_its_largest_number_fits():
    """Worked by hand: log2(1,000 / 126.5) is 2.983 (2.982 in float16); 1,000 / 2 ** 2.982 is 126.5.

    -300 / 2 ** 2.982 is -37.96. log2(.01 / 126.5) is -13.625 in float16, and .01 * 2 ** 13.625 is
    126.3. Bytes stand for numbers from -127 to 127, moved by 128.
    """
    cache = torch.zeros(2, 1, 3, 2, 4, dtype=torch.uint8)
    empty = torch.zeros(2, 0, dtype=torch.int64)
    scales = Scales(torch.zeros(1, 2, 3, 2).half(), empty, torch.zeros(3, 2, 0).half())
    rows = torch.zeros(1, 2, 4)
    rows[0, 0, :2], rows[0, 1, 2] = torch.tensor([1000.0, -300.0]), 0.01
    reference_ops.store((torch.tensor([0]), torch.tensor([1])), rows, rows * 4, *cache, scales)
    logs = scales.pairs[0, :, 1].float()
    assert logs[:, 0].tolist() == pytest.approx([2.983, -13.627], abs=0.005)
    assert (logs[:, 1] - logs[:, 0]).tolist() == pytest.approx([2, 2], abs=0.01)
    assert cache[0, 0, 1].tolist() == [[255, 90, 128, 128], [128, 128, 254, 128]]
    assert not scales.pairs[0, :, [0, 2]].any()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_stay_near_those_of_the_models_format(kind, monkeypatch):
    allow_small_models(monkeypatch)
    model = make_model(kind, "cpu", torch.float32)
    requests = make_requests((64, 300), 3, 8)
    exact, small = (
        answer(make_engine(model, cache, context=320), requests) for cache in ("model", "int8")
    )
    gaps = mean_gaps(exact, small, 3)
    assert all(1e-4 < gap < 0.1 for gap in gaps), "8 bits are used, and they are close"


@pytest.mark.e2e
def test_replies_do_not_depend_on_the_prefix_cache_or_on_the_number_of_slots(model):
    requests = make_requests((64, 100), 3, 6)
    replies = [
        answer(make_engine(model, "int8", context=128, **options), requests)
        for options in ({}, {"prefix_cache": False}, {"slots": 2, "max_batch_tokens": 50})
    ]
    exact = answer(make_engine(model, "model", context=128), requests)
    for other in replies[1:]:
        assert [one.token_ids for one in other] == [one.token_ids for one in replies[0]]
        # Another batch shape changes the last bits of a sum, and so now and then a whole step of 8
        # bits: that is far less than 8 bits themselves change.
        gaps, errors = mean_gaps(other, replies[0], 3), mean_gaps(other, exact, 3)
        assert max(gaps) < 0.1 * max(errors)


def test_a_continued_prompt_reuses_its_keys_also_after_a_release(model):
    engine = make_engine(model, "int8", context=256)
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


def test_a_small_model_is_refused_and_a_cpu_keeps_the_models_format(monkeypatch):
    model = make_model("llama", "cpu", torch.float32)
    with pytest.raises(UserError, match=r"at least 1 B parameters, and this one has 0\.00 B"):
        make_engine(model, "int8")
    with pytest.raises(UserError, match=r"this one has 0\.13 B"):
        plan("smollm2-135m", "--engines.cache=int8")
    monkeypatch.setattr("mage.models.shapes.LEAST_PARAMETERS", 0)
    with pytest.warns(UserWarning, match="has no effect on the CPU"):
        engine = make_engine(model, "int8")
    assert engine.pool.store.dtype == torch.float32
    allow_small_models(monkeypatch)
    with pytest.raises(UserError, match=r"needs engines\.run_ahead"):
        make_engine(model, "int8", run_ahead=False)


@pytest.mark.e2e
def test_large_biases_of_keys_follow_the_weights_and_need_the_plain_decoder(monkeypatch):
    allow_small_models(monkeypatch)
    model = make_model("qwen2", "cpu", torch.float32)
    requests = make_requests((64, 200), 4, 8)
    engine = make_engine(model, "int8", context=256)
    for layer in model.get_decoder().layers:
        layer.self_attn.k_proj.bias.data *= -1
    engine.refresh(1)
    exact = make_engine(model, "model", context=256)
    gaps = mean_gaps(answer(engine, requests), answer(exact, requests), 4)
    assert all(gap < 0.1 for gap in gaps)
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match="is for plain models here"):
        engine.refresh(2)


def plan(model: str, *changes: str):  # type: ignore[no-untyped-def]
    recipe = load_recipe("paper_alfworld", ["--learn.lora_rank=16", *changes])
    return plan_memory(recipe, PRESETS[model], 78 * GB)


def test_the_memory_plan_counts_half_the_bytes_and_finds_more_slots():
    """A token of Qwen3-4B: 36 layers, keys and values, 8 heads of 128 bytes and a scale."""
    wide, small = plan("qwen3-4b"), plan("qwen3-4b", "--engines.cache=int8")
    pool = KeyValuePool(36, 8, 128, (1, 1), torch.bfloat16, torch.device("meta"), small=True)
    assert pool.token_bytes == 36 * 2 * 8 * 130
    context = load_recipe("paper_alfworld").engines.options["context"]
    assert small.fixed.bytes_per_slot == context * pool.token_bytes
    assert wide.fixed.bytes_per_slot / small.fixed.bytes_per_slot == pytest.approx(256 / 130)
    assert wide.slots < small.slots == 64
    assert small.fits


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_interpreted_kernels_compute_what_the_plain_versions_do(monkeypatch):
    """The interpreter runs no assembler."""
    pytest.importorskip("triton")
    widen = import_module("int8_interpreted").widen
    monkeypatch.setattr("mage.engines.gpu.int8_kernels._widen", widen)
    compare_kernels(import_module("mage.engines.gpu.kernels"), "cpu")


@pytest.mark.e2e
def test_the_benchmark_measures_both_caches(monkeypatch, tmp_path):
    allow_small_models(monkeypatch)
    out = tmp_path / "cache.json"
    cache.main(["--size", "tiny", "--rounds", "1", "--out", str(out)])
    records = json.loads(out.read_text())["records"]
    found = [one for one in records if one["part"] == "mismatch"]
    others = [one["cache"] for one in records if one not in found]
    assert others == ["model", "int8"] * 3, "attention, speed, play"
    gaps = {one["cache"]: one["mismatch"] for one in found}
    assert gaps["model"] < 1e-5 < gaps["int8"] < 0.1


def test_the_probe_of_the_engine_allows_for_8_bits(model):
    for name, limits in (("model", EXACT), ("int8", HALF)):
        assert EngineProbe(make_engine(model, name), model, 1.0).limits == limits


def test_decode_attention_takes_a_fourth_stage_only_where_there_is_memory_for_it():
    """Four stages need 104 KB; cards but those of data centres have 99."""
    assert decode_tuning(512, small=False, deep=True).stages == 4
    for programs, small, deep in ((512, False, False), (1024, False, True), (512, True, True)):
        assert decode_tuning(programs, small, deep).stages == 3
    assert [decode_tuning(count, True, True).warps for count in (1024, 4096)] == [4, 2]
