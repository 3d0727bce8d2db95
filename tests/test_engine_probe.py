"""The engine plays with the learner's weights: a lost update ends the run with one message."""

import copy
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_toys
from learn_toys import make_sample
from test_trainer import TINY, small_recipe

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.engines.local import LocalEngine
from mage.learn.learner import Learner
from mage.models.base import find_model
from mage.models.loading import load_model
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.engine_probe import EXACT, HALF, EngineProbe
from mage.training.start import train

PROMPT = tuple(range(3, 30))


def load() -> tuple[Any, Chat]:
    folder = find_model("embedded")
    return load_model(folder, device="cpu"), Chat.load(folder)


def start(path: Path, **changes: dict[str, Any]) -> RunFolder:
    tables = TINY | {"evaluate": TINY["evaluate"] | {"before": False}}
    for name, values in changes.items():
        tables[name] = tables.get(name, {}) | values
    return RunFolder.create(path, small_recipe(**tables))


def run(folder: RunFolder) -> list[dict[str, Any]]:
    train(folder.path, Callback(), lambda: False)
    return list(folder.metrics())


@pytest.mark.parametrize("rank", [0, 2])
def test_moves_with_the_learner_and_finds_a_copy_that_stays(rank):
    model, chat = load()
    stale = LocalEngine(copy.deepcopy(model), chat, slots=4, context=128)
    fresh = LocalEngine(model, chat, slots=4, context=128)
    learner = Learner(model, LearnOptions(lr=0.01, lora_rank=rank))
    probes = [EngineProbe(engine, model, 1.0) for engine in (fresh, stale)]
    for probe in probes:
        probe.check([PROMPT], 0)
    sample = make_sample(PROMPT, (5, 6, 7), old_logprobs=(-3.0,) * 3)
    for update in (1, 2):
        learner.update([sample], entropy=0.0, update=update)
        fresh.refresh(update)
        probes[0].check([], update)
    with pytest.raises(UserError, match="after update 2 the engine does not play with"):
        probes[1].check([], 2)


def test_a_small_change_that_the_engine_missed_is_found_though_the_gap_is_small():
    model, chat = load()
    engine = LocalEngine(copy.deepcopy(model), chat, slots=4, context=128)
    probe = EngineProbe(engine, model, 1.0)
    probe.limits = EXACT._replace(gap=100.0)
    probe.check([PROMPT], 0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    with pytest.raises(UserError, match="exactly as before the update"):
        probe.check([], 1)


def test_half_precision_has_wider_limits():
    model, chat = load()
    engine = LocalEngine(model, chat, slots=4, context=128)
    assert EngineProbe(engine, model, 1.0).limits == EXACT
    assert EngineProbe(engine, model.bfloat16(), 1.0).limits == HALF


def test_leaves_nothing_in_the_engine():
    model, chat = load()
    engine = LocalEngine(model, chat, slots=4, context=128)
    EngineProbe(engine, model, 1.0).check([PROMPT], 0)
    assert (engine.slots.used, engine.slots.clock) == (0, 0)
    assert not engine.slots.holders


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["local", "vllm"])
def test_training_ends_if_new_weights_never_reach_the_engine(name, tmp_path, monkeypatch):
    if name == "vllm":
        vllm_toys.install(monkeypatch)
        load, loaded = vllm_toys.LLMEngine.collective_rpc, list[Any]()

        def load_once(engine: Any, method: str, kwargs: dict[str, Any]) -> None:
            if engine not in loaded:
                loaded.append(engine)
                load(engine, method, kwargs)

        monkeypatch.setattr(vllm_toys.LLMEngine, "collective_rpc", load_once)
    else:
        build = LocalEngine.__init__

        @wraps(build)  # the options of a recipe are those of its signature
        def build_from_copy(engine: Any, model: Any, chat: Any, **options: Any) -> None:
            build(engine, copy.deepcopy(model), chat, **options)

        monkeypatch.setattr(LocalEngine, "__init__", build_from_copy)
    changes: dict[str, dict[str, Any]] = {"engines": {"name": name, "context": 512}}
    folder = start(tmp_path / "run", **changes)
    with pytest.raises(UserError, match="after update 1 the engine does not play"):
        run(folder)


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [0, 2])
def test_mismatch_stays_flat_without_learning(rank, tmp_path):
    """A learning rate that is too small to change any weight stands for 0."""
    learn = {"lr": 1e-30, "lora_rank": rank}
    metrics = run(start(tmp_path / "run", run={"updates": 2, "evaluate_every": 0}, learn=learn))
    assert len(metrics) == 2
    assert max(one["mismatch"] for one in metrics) < 1e-5
    assert any(one["gradient_norm"] > 0 for one in metrics)  # groups may be flat
