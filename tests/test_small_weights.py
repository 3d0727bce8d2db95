"""Weights in 8 bits for decode steps (engines.weights = "int8"), with plain operations on a CPU.

tests/test_gpu.py has the same for the kernels; TRITON_INTERPRET=1 runs them here, where Triton is
installed.
"""

import os
from functools import partial
from importlib import import_module

import pytest
import torch
from int8_toys import (
    KINDS,
    allow_small_models,
    answer,
    make_engine,
    make_model,
    make_requests,
    mean_gaps,
)
from test_products import SHARED_MEMORY, drawer

from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.gpu import reference_ops as ops
from mage.engines.gpu.small_weights import GROUP, MOST, make_small, round_weight, widen
from mage.engines.gpu.state import tiles_for
from mage.engines.local import LocalEngine
from mage.models.loading import pick_weights
from mage.models.shapes import PRESETS
from mage.training.engine_probe import HALF, EngineProbe
from mage.training.memory_bytes import GB
from mage.training.memory_plan import plan_memory


@pytest.fixture
def model(monkeypatch):
    allow_small_models(monkeypatch)
    return make_model("llama", "cpu", torch.float32)


def rounded(weight: torch.Tensor):  # type: ignore[no-untyped-def]
    small = make_small(weight)
    assert small is not None
    round_weight(weight, small)
    return small


def addresses(engine: LocalEngine) -> list[int]:
    assert engine.decoder is not None
    assert engine.decoder.small
    copies = [copy for layer in engine.decoder.small for copy in layer if copy is not None]
    return [tensor.data_ptr() for copy in copies for tensor in copy]


def test_every_group_of_inputs_has_a_scale_of_its_own():
    """By hand: 12.7 / 127 is .1 (.10009765625 in bfloat16), so 3 is 30 steps.

    The largest number of the second group is -127, so its scale is 1. Inputs 0 and 64 of a group
    are neighbours, then 1 and 65.
    """
    weight = torch.zeros(64, 2 * GROUP)
    weight[5, :2], weight[5, GROUP], weight[5, -1] = torch.tensor([12.7, 3.0]), -127.0, 3.0
    weight[5, 64] = -3.0
    small = rounded(weight)
    assert small.numbers[5, :4].tolist() == [127, -30, 30, 0]
    assert small.numbers[5, GROUP:].tolist() == [-127] + 126 * [0] + [3]
    assert small.scales[5].tolist() == [0.10009765625, 1]
    assert widen(small, torch.float32)[5, 1] == pytest.approx(3.0029, abs=1e-3)
    assert not widen(small, torch.float32)[4].any(), "a group of zeros stays zero"


def test_a_number_is_at_most_half_a_step_away():
    weight = torch.randn(128, 4 * GROUP)
    small = rounded(weight)
    steps = small.scales.float().repeat_interleave(GROUP, 1)
    clipped = steps * 127.5 < weight.abs()  # a scale may be rounded down
    assert clipped.float().mean() < 0.01
    gaps = (widen(small, torch.float32) - weight).abs()
    assert (gaps <= steps * 0.501)[~clipped].all()
    assert (gaps <= steps)[clipped].all()


def test_shapes_without_whole_groups_have_no_copy():
    assert make_small(torch.zeros(64, 192)) is None
    assert make_small(torch.zeros(60, 128)) is None


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_few_tokens_read_the_copy(kind, monkeypatch):
    """Three sequences decode in steps of three tokens, 130 in steps of 130."""
    allow_small_models(monkeypatch)
    model = make_model(kind, "cpu", torch.float32)
    assert 3 <= MOST < 130
    for count in (3, 130):
        requests = make_requests((50,), count, 6)
        sizes = {"slots": count, "context": 64, "prefix_cache": False}  # all join in one step
        exact, small = (
            answer(make_engine(model, "model", weights=weights, **sizes), requests)
            for weights in ("model", "int8")
        )
        if count > MOST:
            assert [one.logprobs for one in exact] == [one.logprobs for one in small]
        else:
            assert 1e-4 < mean_gaps(exact, small, count)[0] < 0.1


@pytest.mark.e2e
def test_the_copies_follow_the_weights_in_place(model):
    requests = make_requests((64,), 3, 8)
    engine = make_engine(model, "model", context=128, weights="int8")
    before = addresses(engine)
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.mlp.gate_proj.weight *= -1.5
    engine.refresh(1)
    fresh = make_engine(model, "model", context=128, weights="int8")
    ours, theirs = answer(engine, requests), answer(fresh, requests)
    assert [one.logprobs for one in ours] == [one.logprobs for one in theirs]
    assert addresses(engine) == before


def test_small_models_other_devices_and_added_modules(monkeypatch):
    model = make_model("llama", "cpu", torch.float32)
    with pytest.raises(UserError, match=r"engines\.weights = .int8. is for models of at least 1 B"):
        make_engine(model, "model", weights="int8")
    monkeypatch.setattr("mage.models.shapes.LEAST_PARAMETERS", 0)
    with pytest.warns(UserWarning, match="has no effect on the CPU"):
        engine = make_engine(model, "model", weights="int8")
    assert engine.decoder.small is None
    assert not engine.rounds
    allow_small_models(monkeypatch)
    with pytest.raises(UserError, match=r"engines\.weights = .int8. needs engines\.run_ahead"):
        make_engine(model, "model", weights="int8", run_ahead=False)
    engine = make_engine(model, "model", weights="int8")
    assert EngineProbe(engine, model, 1.0).limits == HALF
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match="is for plain models"):
        engine.refresh(1)


def test_cards_without_the_kernels_keep_the_models_weights(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A100")
    for capability, chosen in (((9, 0), "int8"), ((8, 0), "model"), ((10, 0), "model")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device, c=capability: c)
        if chosen == "int8":
            assert pick_weights("int8", torch.device("cuda")) == "int8"
        else:
            with pytest.warns(UserWarning, match="no effect on A100"):
                assert pick_weights("int8", torch.device("cuda")) == "model"


def test_the_memory_plan_counts_the_copy():
    """Qwen3-4B: 3.63 billion weights of linear layers, a byte each and two for 128."""
    shape = PRESETS["qwen3-4b"]
    plans = [
        plan_memory(load_recipe("paper_alfworld", ["--learn.lora_rank=16", *more]), shape, 78 * GB)
        for more in ((), ("--engines.weights=int8",))
    ]
    extra = shape.layers * shape.linear_weights * 130 / 128
    assert extra == pytest.approx(3.69e9, rel=0.01)
    assert plans[1].fixed.both_phases - plans[0].fixed.both_phases == pytest.approx(extra)
    recipe = load_recipe("paper_alfworld", ["--engines.weights=int8"])
    with pytest.raises(UserError, match=r"engines\.weights"):
        plan_memory(recipe, PRESETS["smollm2-135m"], 78 * GB)


@pytest.mark.parametrize(("gated", "summed"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128])
@pytest.mark.parametrize("depth", [1536, 2560, 4096, 8960, 9728])
def test_a_step_of_inputs_is_a_group_of_scales(gated, summed, rows, depth):
    tiles = tiles_for(rows, 2560, depth, gated=gated, summed=summed, small=True)
    assert tiles is not None
    assert tiles.depth == GROUP
    padded = max(16, 2 ** (rows - 1).bit_length())
    bytes_of_a_step = GROUP * (tiles.words * (2 if gated else 1) + 2 * padded)
    assert tiles.stages * bytes_of_a_step <= SHARED_MEMORY


def compare_small_products(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """The kernels read the copies as the plain versions do."""
    kernels = import_module("mage.engines.gpu.product_kernels")
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    draw = drawer(device, dtype)
    for count, depth in ((1, 128), (16, 512), (20, 256), (64, 384), (100, 256), (128, 128)):
        rows, bias, hidden, norm = draw(count, depth), draw(128), draw(count, 128), draw(128)
        weight, wide = draw(128, depth) / depth**0.5, draw(256, depth) / depth**0.5
        small, small_wide = rounded(weight), rounded(wide)
        plain = tiles_for(count, 128, depth, small=True)
        close(
            kernels.product(rows, small, plain, bias=bias), ops.project(rows, weight, bias, small)
        )
        tiles = tiles_for(count, 128, depth, gated=True, small=True)
        gated = kernels.product(rows, small_wide, tiles, gated=True)
        close(gated, ops.project_gated(rows, wide, None, small_wide))
        own, other = hidden.clone(), hidden.clone()
        tiles = tiles_for(count, 128, depth, summed=True, small=True)
        found = kernels.add_norm(own, kernels.product(rows, small, tiles, summed=True), norm, 1e-6)
        close(found, ops.add_project_norm(other, rows, weight, None, norm, 1e-6, small))
        close(own, other)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_the_interpreted_kernels_read_the_copies():
    pytest.importorskip("triton")
    compare_small_products("cpu", torch.float32, 1e-4)
