"""Layers as recorded CUDA graphs, with a stand-in for graphs that runs on a CPU.

The stand-in keeps every operation with its tensors, and replays it with the same tensors. So these
tests show which numbers reach which tensor. tests/test_gpu.py has the same with real graphs.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from learn_toys import make_model, make_sample
from torch.utils._python_dispatch import TorchDispatchMode

from mage.config.errors import DeviceError
from mage.config.loading import load_recipe
from mage.config.sections import LearnOptions
from mage.learn.adapters import Adapters
from mage.learn.learner import Learner
from mage.learn.pack import graphs
from mage.learn.pack.graphs import LayerGraphs
from mage.learn.pack.tries import prepare
from mage.models.side_by_side import place_side_by_side
from mage.run_folder import RunFolder
from mage.training.device_errors import explain_device_errors
from mage.types import Sample


class StandIn:
    """What a CUDA graph is on a GPU: operations on tensors that keep their memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, given, named, kept in self.calls:
            found = function(*given, **named)
            for new, old in zip(_tensors(found), _tensors(kept), strict=True):
                if new.untyped_storage().data_ptr() != old.untyped_storage().data_ptr():
                    old.copy_(new)


def _tensors(found: Any) -> list[torch.Tensor]:
    several = found if isinstance(found, tuple | list) else (found,)
    return [one for one in several if isinstance(one, torch.Tensor)]


class Recorder(TorchDispatchMode):
    def __init__(self, graph: StandIn) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None):  # type: ignore[no-untyped-def]
        found = function(*given, **(named or {}))
        self.graph.calls.append((function, given, named or {}, found))
        return found


@contextmanager
def record(graph: StandIn, pool: object = None) -> Iterator[None]:
    with Recorder(graph):
        yield


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(graphs, "recording", nullcontext)


def make_samples(*prompts: int) -> list[Sample]:
    """Groups of four samples that share a prompt of so many tokens."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 7, (count,), generator=generator).tolist())

    return [
        make_sample(prompt, draw(6), advantage=float(number - 1))
        for prompt in map(draw, prompts)
        for number in range(4)
    ]


def train(
    kind: str,
    recorded: bool,
    between: Any = None,
    prompts: tuple[int, ...] = (40, 40, 40),
    most: int = 128,
) -> Learner:
    """Three updates with one group of samples in a micro-batch; `between`: before the third.

    Micro-batches have whole blocks of 128 tokens.
    """
    options = LearnOptions(lora_rank=2, micro_tokens=64, minibatches=1, lr=1e-2)
    learner = Learner(make_model(kind, exact=False), options, layout="trie")
    trainable = learner.trainable
    assert isinstance(trainable, Adapters)
    assert trainable.factors is not None
    if recorded:
        trainable.graphs = LayerGraphs(learner.module.get_decoder(), trainable.factors, most)
    for update in range(3):
        if between is not None and update == 2:
            between(learner)
        learner.update(make_samples(*prompts), entropy=0.1, update=update)
    return learner


def check_equal(one: Learner, other: Learner) -> None:
    for name, plain in other.trainable.masters.items():
        torch.testing.assert_close(one.trainable.masters[name], plain, atol=1e-6, rtol=1e-5)


def pairs(learner: Learner) -> list[Any]:
    assert learner.trainable.graphs is not None
    return list(learner.trainable.graphs._pairs.values())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_recorded_layers_learn_what_plain_layers_do(kind, stand_in):
    """Three micro-batches of one length an update: the first of all compiles, the second records.

    The graph of the first one is still alive then.
    """
    recorded = train(kind, True)
    check_equal(recorded, train(kind, False))
    (pair,) = pairs(recorded)
    assert (pair.forward.replays, pair.backward.replays) == (8, 8)


def test_layers_are_recorded_again_when_the_engine_has_moved_their_weights(stand_in):
    def move(learner: Learner) -> None:
        for layer in learner.module.get_decoder().layers:
            place_side_by_side([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])

    recorded = train("llama", True, move)
    check_equal(recorded, train("llama", False, move))
    (pair,) = pairs(recorded)
    assert pair.forward.replays == 2, "of the last update"


def test_a_longer_length_begins_a_new_pool_in_which_shorter_ones_are_recorded_again(
    stand_in, monkeypatch
):
    """The second update has a longer micro-batch, which compiles; the third one records it."""
    pools: list[int] = []

    def new_pool() -> int:
        pools.append(len(pools))
        return pools[-1]

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", new_pool)

    def train_both(recorded: bool) -> Learner:
        learner = train("llama", recorded, prompts=(30, 30), most=256)
        for update in (3, 4):
            learner.update(make_samples(30, 150), entropy=0.1, update=update)
        return learner

    recorded = train_both(True)
    assert len(pools) == 2
    assert recorded.trainable.graphs is not None
    assert list(recorded.trainable.graphs._pairs) == [256, 128]
    check_equal(recorded, train_both(False))


def test_rows_that_are_longer_than_a_micro_batch_are_not_recorded(stand_in):
    recorded = train("llama", True, prompts=(30, 150, 150), most=128)
    check_equal(recorded, train("llama", False, prompts=(30, 150, 150)))
    assert recorded.trainable.graphs is not None
    assert list(recorded.trainable.graphs._pairs) == [128]


def test_a_gradient_that_is_there_is_part_of_the_sum(stand_in):
    learner = train("llama", True)
    rows = prepare(make_samples(40, 40))
    found = []
    for before in (0.0, 1.0):
        for master in learner.trainable.masters.values():
            master.grad = torch.full_like(master, before)
        learner.accumulate(rows, entropy=0.0)
        found.append([master.grad.clone() for master in learner.trainable.masters.values()])
    for zero, one in zip(*found, strict=True):
        torch.testing.assert_close(one, zero + 1)


def test_scores_without_gradient_need_no_graphs(stand_in):
    learner = train("llama", True)
    (pair,) = pairs(learner)
    before = pair.forward.replays
    learner.logprobs(prepare(make_samples(40, 40, 40)))
    assert pair.forward.replays == before


def test_a_failed_recording_names_the_option(stand_in, monkeypatch):
    def fail(self: StandIn) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nand more lines")

    monkeypatch.setattr(Recorder, "__enter__", fail)
    with pytest.raises(DeviceError, match=r"operation not permitted\): set learn.graphs = false"):
        train("llama", True)


def test_a_recording_without_memory_is_the_error_of_a_full_gpu(stand_in, monkeypatch, tmp_path):
    def fail(self: StandIn) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Recorder, "__enter__", fail)
    recipe = load_recipe("smollm2_kuhn_poker", ["--learn.graphs=true"])
    run = RunFolder.create(tmp_path / "run", recipe)
    advice = r"learn\.graphs = false also needs less memory"
    with pytest.raises(DeviceError, match=advice), explain_device_errors(run):
        train("llama", True)
