"""Linear layers of a decode step: the kernels of the device loop and their plain versions.

tests/test_gpu.py has the same for the kernels; TRITON_INTERPRET=1 runs them here, where Triton is
installed.
"""

import json
import os
from functools import partial
from importlib import import_module

import pytest
import torch

from benchmarks import products, steps
from mage.engines.gpu import reference_ops as ops
from mage.engines.gpu.state import SMALL, Tiles, overlap_pays, tiles_for


def compare_products(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """The kernels with several ways to divide the work, numbers of rows, and depths."""
    kernels = import_module("mage.engines.gpu.product_kernels")
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    for count, depth in ((1, 128), (3, 256), (16, 512), (20, 256), (64, 384), (128, 128)):
        rows, bias, hidden, norm = draw(count, depth), draw(128), draw(count, 128), draw(128)
        weight, wide = draw(128, depth) / depth**0.5, draw(256, depth) / depth**0.5
        for words, step, splits in ((64, 64, 2), (128, 128, 1), (64, 128, 1)):
            tiles = Tiles(words, step, splits, warps=4, stages=2)  # three do not fit an H200
            once = tiles._replace(splits=1)
            close(kernels.product(rows, weight, once), ops.project(rows, weight, None))
            biased = kernels.product(rows, weight, once, bias=bias)
            close(biased, ops.project(rows, weight, bias))
            gated = kernels.product(rows, wide, once, gated=True)
            close(gated, ops.project_gated(rows, wide, None))
            own, other = hidden.clone(), hidden.clone()
            parts = kernels.product(rows, weight, tiles, summed=True)
            assert parts.dtype == torch.float32
            found = kernels.add_norm(own, parts, norm, 1e-6)
            close(found, ops.add_project_norm(other, rows, weight, None, norm, 1e-6))
            close(own, other)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_the_interpreted_kernels_compute_what_the_plain_versions_do():
    pytest.importorskip("triton")
    compare_products("cpu", torch.float32, 1e-4)


SHARED_MEMORY = 227 * 1024  # of a multiprocessor of an H200


@pytest.mark.parametrize(("gated", "summed"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("words", [128, 576, 1536, 2560, 6144, 9728, 151_936])
@pytest.mark.parametrize("depth", [64, 576, 2560, 9728])
def test_tiles_divide_a_product_and_fit_into_a_multiprocessor(words, depth, gated, summed):
    assert tiles_for(129, words, depth, gated=gated, summed=summed) is None
    assert tiles_for(4, words, 100) is None, "100 inputs cannot be divided"
    for rows in (1, 16, 17, 64, 100, 128):
        tiles = tiles_for(rows, words, depth, gated=gated, summed=summed)
        if tiles is None:
            small = rows > 16 and words * depth < SMALL
            assert small or (rows > 64 and not summed)
            continue
        assert words % tiles.words == depth % tiles.depth == 0
        assert 1 <= tiles.splits <= (depth // tiles.depth if summed else 1)
        padded = max(16, 2 ** (rows - 1).bit_length())
        lines = tiles.words * (2 if gated else 1) + padded
        assert tiles.stages * lines * tiles.depth * 2 <= SHARED_MEMORY


def test_small_products_of_many_rows_are_left_to_cublas():
    """SmolLM2-135M: an update's steps have 64 rows and more; its head is a large product."""
    for words, depth in ((960, 576), (576, 576), (1536, 576), (576, 1536)):
        assert tiles_for(16, words, depth, summed=True) is not None
        assert tiles_for(64, words, depth, summed=True) is None
    assert tiles_for(64, 49_152, 576) is not None
    for words, depth in ((2048, 1536), (1536, 1536), (1536, 8960)):  # Qwen2.5-1.5B
        assert tiles_for(64, words, depth, summed=True) is not None


@pytest.mark.parametrize("biased", [False, True])
def test_the_plain_versions_are_the_layers_of_the_modules(biased):
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4, bias=biased).requires_grad_(False)
    norm = torch.nn.RMSNorm(4, eps=1e-6).requires_grad_(False)
    rows, hidden, bias = torch.randn(3, 6), torch.randn(3, 4), layer.bias
    torch.testing.assert_close(ops.project(rows, layer.weight, bias), layer(rows))
    gate, up = layer(rows).chunk(2, -1)
    gated = ops.project_gated(rows, layer.weight, bias)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up)
    wanted = hidden + layer(rows)
    found = ops.add_project_norm(hidden, rows, layer.weight, bias, norm.weight, 1e-6)
    torch.testing.assert_close(hidden, wanted)
    torch.testing.assert_close(found, norm(wanted))


def test_kernels_over_many_short_rows_do_not_overlap():
    """As measured: SmolLM2-135M's rows of 576 numbers, Qwen2.5-1.5B's of 1,536."""
    assert [overlap_pays(rows, 576) for rows in (8, 16, 32, 128)] == [True, True, False, False]
    assert all(overlap_pays(rows, 1536) for rows in (8, 64, 128))


@pytest.mark.e2e
def test_the_benchmark_measures_all_ways(tmp_path):
    """On a CPU all are the same operations."""
    out = tmp_path / "steps.json"
    words = ["--shapes", "tiny", "--counts", "2", "--keys", "8", "--formats", "model"]
    steps.main([*words, "--ways", ",".join(steps.WAYS), "--out", str(out)])
    (record,) = json.loads(out.read_text())["records"]
    assert record["case"] == "2 x 8 keys"
    assert all(record[f"{way}_equal"] and record[f"{way}_ms"] > 0 for way in steps.WAYS)
    assert {record[f"{way}_distance"] for way in steps.WAYS[1:]} == {0}
    assert record["ours_gain"] == record["separate_ms"] / record["ours_ms"]


@pytest.mark.e2e
def test_the_benchmark_of_products_measures_and_tries_other_tiles(tmp_path):
    """On a CPU all tiles are the same operation."""
    out = tmp_path / "products.json"
    words = ["--shapes", "tiny", "--rows", "2", "--products", "qkv,down", "--tune"]
    products.main([*words, "--out", str(out)])
    records = json.loads(out.read_text())["records"]
    cases = [record for record in records if "case" in record]
    assert [one["case"] for one in cases] == ["qkv 512 x 64, 2 rows", "down 64 x 128, 2 rows"]
    for way in products.WAYS:
        read = [one[f"{way}_tb_per_s"] * one[f"{way}_us"] for one in cases]
        assert read == pytest.approx([512 * 64 * 4 / 1e6, 64 * 128 * 4 / 1e6])
    tuned = [record["tuned"] for record in records if "tuned" in record]
    assert tuned == ["qkv, 2 rows", "down, 2 rows"]


def test_tiles_are_improved_one_group_of_choices_after_the_other():
    """By hand: 128 words with 8 warps are best, four splits do not fit, 6 stages cannot run."""
    prepared: list[list[Tiles]] = []

    def seconds(tiles: Tiles) -> float | None:
        assert tiles in prepared[-1]
        if tiles.stages == 6:
            return None
        return 10.0 - tiles.words / 64 - tiles.warps / 8 - tiles.splits - tiles.stages / 10

    start = Tiles(64, 128, stages=3)
    best, found = products.improve(start, seconds, lambda tiles: tiles.splits < 4, prepared.append)
    assert best == Tiles(128, 128, splits=3, warps=8, stages=5)
    assert found[best] == pytest.approx(10 - 2 - 1 - 3 - 0.5)
    # 25 of words, warps and stages, the start among them; two more splits; three of `ahead`.
    assert [len(tiles) for tiles in prepared] == [1, 24, 2, 3]
    assert len(found) == 30
