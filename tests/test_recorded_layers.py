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
from mage.config.sections import LearnOptions
from mage.learn.adapters import Adapters
from mage.learn.learner import Learner
from mage.learn.pack import graphs
from mage.learn.pack.graphs import LayerGraphs
from mage.learn.pack.tries import prepare
from mage.models.side_by_side import place_side_by_side
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


def make_samples() -> list[Sample]:
    """Three groups of four samples that share a prompt. All groups have the same sizes."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 7, (count,), generator=generator).tolist())

    return [
        make_sample(prompt, draw(6), advantage=float(number - 1))
        for prompt in (draw(40), draw(40), draw(40))
        for number in range(4)
    ]


def train(kind: str, recorded: bool, between: Any = None) -> Learner:
    """Three updates with one group of samples in a micro-batch; `between`: before the third."""
    options = LearnOptions(lora_rank=2, micro_tokens=64, minibatches=1, lr=1e-2)
    learner = Learner(make_model(kind, exact=False), options, layout="trie")
    trainable = learner.trainable
    assert isinstance(trainable, Adapters)
    assert trainable.factors is not None
    if recorded:
        trainable.graphs = LayerGraphs(learner.module.get_decoder(), trainable.factors)
    for update in range(3):
        if between is not None and update == 2:
            between(learner)
        learner.update(make_samples(), entropy=0.1, update=update)
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


def test_scores_without_gradient_need_no_graphs(stand_in):
    learner = train("llama", True)
    (pair,) = pairs(learner)
    before = pair.forward.replays
    learner.logprobs(prepare(make_samples()))
    assert pair.forward.replays == before


def test_a_failed_recording_names_the_option(stand_in, monkeypatch):
    def fail(self: StandIn) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nand more lines")

    monkeypatch.setattr(Recorder, "__enter__", fail)
    with pytest.raises(DeviceError, match=r"operation not permitted\): set learn.graphs = false"):
        train("llama", True)
