"""Ranks on one machine over gloo: messages, gradients, sharded optimizer state."""

import copy
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_toys import make_model, make_sample
from toys import scripted_agent

from mage.config.loading import load_recipe
from mage.config.sections import LearnOptions
from mage.environments.kuhn_poker import KuhnPoker
from mage.learn.learner import Learner
from mage.learn.owned_state import assign_owners
from mage.memory.notes import Notes
from mage.models.shapes import PRESETS
from mage.play import PlaySetup, play_groups
from mage.ranks.dealing import SharedQueue
from mage.ranks.launch import launch_ranks
from mage.ranks.ranks import RankFailed, RankLost, Ranks, RanksStopped
from mage.ranks.stop import StopRequest
from mage.ranks.watch import Peer, Watch, describe_loss
from mage.training.memory_plan import plan_memory
from mage.types import Sample, Task, TurnRef

# What is trained: name, number format of the weights, LoRA rank.
KINDS = (("all", torch.float32, 0), ("half", torch.bfloat16, 0), ("lora", torch.float32, 2))


def make_samples() -> list[Sample]:
    """Ten meta-episodes in five groups, with one to six turns each."""
    rng = random.Random(3)
    return [
        _sample(rng, group, member, index)
        for group in range(5)
        for member in range(2)
        for index in range(1 + (group + 3 * member) % 6)
    ]


def _sample(rng: random.Random, group: int, member: int, index: int) -> Sample:
    reply = tuple(rng.choices(range(7), k=rng.randint(1, 4)))
    return make_sample(
        tuple(rng.choices(range(7), k=rng.randint(2, 9))),
        reply,
        old_logprobs=tuple(rng.uniform(-3, -0.5) for _ in reply),
        advantage=rng.uniform(-1, 1),
        where=TurnRef(group, member, 0, index, ""),
    )


def own_samples(ranks: Ranks) -> list[Sample]:
    """Groups 0 to 3 in turn; the last rank has group 4 too, and rank 2 of three has nothing."""
    workers = min(2, ranks.size)
    return [sample for sample in make_samples() if sample.where.group % workers == ranks.rank]


def train(ranks: Ranks, samples: list[Sample], model: Any, folder: Path, **options: Any) -> Learner:
    """Two updates, a checkpoint, one more update."""
    chosen = LearnOptions(lr=0.01, minibatches=2, kl=0.1, entropy=0.01, **options)
    learner = Learner(model, chosen, seed=1, total_updates=3, ranks=ranks)
    for update in range(2):
        learner.update(samples, entropy=0.01, update=update)
    if ranks.is_main or learner.is_sharded:
        learner.save(folder, update=2, state={})
    ranks.barrier()
    learner.load(folder / "update_000002")
    learner.update(samples, entropy=0.01, update=2)
    return learner


def compare(first: Any, second: Any) -> float:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((one.double() - two.double()).abs().max()) for one, two in pairs)


def check_sharding(ranks: Ranks, folder: Path) -> dict[str, float]:
    """The largest difference between sharded and replicated ranks."""
    found = {}
    for name, dtype, rank in KINDS:
        model = make_model(exact=False).to(dtype)
        models = [copy.deepcopy(model) for _ in range(2)]
        for one, shard in zip(models, ("none", "optimizer"), strict=True):
            options = {"shard": shard, "lora_rank": rank}
            train(ranks, own_samples(ranks), one, folder / f"{name}_{shard}", **options)
        found[name] = compare(*models)
        found[f"{name} moved"] = compare(models[0], model)
    return found


def train_alone(ranks: Ranks, model: Any, folder: Path) -> Any:
    """The same training in one process, in float64; on rank 0 only, which compares with it."""
    alone = copy.deepcopy(model)
    if ranks.is_main:
        train(Ranks(), make_samples(), alone, folder / "alone")
    return alone


def check_members(ranks: Ranks, folder: Path, alone: Any) -> float:
    """The largest difference between one process and members on several ranks."""
    ranks.deals_members = True
    many = make_model()
    train(ranks, own_samples(ranks), many, folder / "many")
    return compare(alone, many)


def check_queue(ranks: Ranks) -> tuple[int, bool]:
    """All members are dealt to rank 0, but the last rank plays first and takes all of them.

    Returns the number that rank 0 has played, and whether its results are those of one process.
    """
    agent = scripted_agent(
        lambda prompt: f"<action>{'bet' if len(prompt) % 3 else 'pass'}</action>"
    )
    agent.engine.capacity = 2
    play_setup = PlaySetup(KuhnPoker(), agent, Notes(keep="both"))
    tasks = [[Task("kuhn_poker", group, group % 2, "random", "train")] * 2 for group in range(3)]
    rank_of = {(group, member): 0 for group in range(3) for member in range(2)}
    queue = SharedQueue(ranks, rank_of, "test")
    assert queue.is_useful(agent.engine.capacity)
    if ranks.rank != ranks.size - 1:
        ranks.barrier()
    played = play_groups(play_setup, tasks, 7, choose=queue.choose)
    if ranks.rank == ranks.size - 1:
        ranks.barrier()
    found = queue.give_back(played)
    return len(played), found == (play_groups(play_setup, tasks, 7) if ranks.is_main else [])


def check_full(ranks: Ranks, folder: Path, alone: Any) -> dict[str, float]:
    """The largest difference between one process and FSDP2; rank 2 has no work."""
    ranks.deals_members = True
    found = {}
    for recompute in (False, True):
        model, place = make_model(), folder / f"full_{recompute}"
        many = copy.deepcopy(model)
        options = {"micro_tokens": 48, "recompute": recompute, "shard": "full"}
        train(ranks, own_samples(ranks), many, place, **options)
        found[str(recompute)] = compare(alone, many)
        if ranks.is_main:
            found[f"resumed {recompute}"] = compare(alone, resume(model, place))
    return found


def resume(model: Any, folder: Path) -> Any:
    """One process that continues from a checkpoint of several ranks."""
    chosen = LearnOptions(lr=0.01, minibatches=2, kl=0.1, entropy=0.01)
    learner = Learner(model, chosen, seed=1, total_updates=3)
    learner.load(folder / "update_000002")
    learner.update(make_samples(), entropy=0.01, update=2)
    return model


def check_messages(ranks: Ranks) -> list[str]:
    """A failure and a stop on the last rank reach all ranks at the same gather."""
    assert ranks.gather(ranks.rank) == list(range(ranks.size))
    assert ranks.broadcast(ranks.rank) == 0
    last, seen = ranks.size - 1, []
    try:
        with ranks.together():
            if ranks.rank == last:
                raise ValueError("no data here")
    except (RankFailed, ValueError) as error:
        seen.append(str(error))
    try:
        if ranks.rank == last:
            ranks.send_stop()
        ranks.gather("work")
    except RanksStopped:
        seen.append("stopped")
    return seen


def check_all(ranks: Ranks, folder: Path, stop: Any = None) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {"messages": check_messages(ranks), "sharding": check_sharding(ranks, folder)}
    alone = train_alone(ranks, make_model(), folder)
    found["full"] = check_full(ranks, folder, alone)
    found["queue"] = check_queue(ranks)
    return found | {"members": check_members(ranks, folder, alone)}


@pytest.mark.e2e
def test_ranks_agree_and_sharded_state_equals_replicated_state(tmp_path):
    """Two ranks with work and one without."""
    size = 3
    found = launch_ranks(size, check_all, tmp_path, folder=tmp_path, stop=StopRequest())
    failed, stopped = found["messages"]
    assert failed.startswith(f"rank {size - 1} on ")
    assert failed.endswith(": no data here")
    assert stopped == "stopped"
    for name in ("all", "half", "lora"):
        assert found["sharding"][name] == 0.0, name
        assert found["sharding"][f"{name} moved"] > 1e-3, name
    assert found["queue"] == (0, True)
    assert found["members"] < 1e-12
    assert max(found["full"].values()) < 1e-10


def die(ranks: Ranks, stop: Any = None) -> None:
    if ranks.rank == 1:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os._exit(9)
    ranks.barrier()


@pytest.mark.e2e
def test_a_rank_that_dies_is_reported_with_its_last_lines(tmp_path):
    with pytest.raises(RankLost, match=r"rank 1 on .* ended unexpectedly(.|\n)*the last words"):
        launch_ranks(2, die, folder=tmp_path, stop=StopRequest())


class FakeStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def test_a_rank_on_another_host_is_lost_after_forty_seconds_of_silence():
    store, clock = FakeStore(), [0.0]
    peers = [Peer(0, "here", 1), Peer(1, "there", 2)]
    watch = Watch(Ranks(0, 2), peers, store)
    other = Watch(Ranks(1, 2), peers, store)
    other.beat(1)
    assert watch.look(lambda: clock[0]) is None
    clock[0] = 39.0
    other.beat(2)
    assert watch.look(lambda: clock[0]) is None
    clock[0] = 78.0
    assert watch.look(lambda: clock[0]) is None
    clock[0] = 80.0
    assert watch.look(lambda: clock[0]) == peers[1]
    assert "rank 1 on there (process 2) ended unexpectedly" in describe_loss(peers[1], None)


@pytest.mark.parametrize("saves", [True, False])
def test_a_rank_that_saves_after_a_loss_is_not_ended(monkeypatch, saves):
    """One that does not even notice the loss is."""
    monkeypatch.setattr("mage.ranks.watch._GRACE", 0.01)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    ranks, gone = Ranks(0, 2), subprocess.Popen(["true"])
    gone.wait()
    here = socket.gethostname()
    watch = Watch(ranks, [Peer(0, here, os.getpid()), Peer(1, here, gone.pid)])
    watch.lost = watch.look()
    if saves:
        with pytest.raises(RankLost):
            watch.check()
        threading.Timer(0.5, watch._ended.set).start()
    watch._in_main = False
    watch._interrupt_main()
    assert ended == ([] if saves else [2])


def test_owners_get_equal_shares_of_whole_tensors():
    sizes, loads = {"a": 1, "b": 5, "c": 4, "d": 2, "e": 6}, Counter[int]()
    for name, owner in assign_owners(sizes, 3).items():
        loads[owner] += sizes[name]
    assert loads == {0: 6, 1: 6, 2: 6}


def test_the_memory_plan_divides_masters_and_moments_among_the_ranks():
    shape = PRESETS["qwen3-4b"]
    recipe = load_recipe("paper_alfworld", ["--learn.shard=optimizer"])
    alone, eight = (plan_memory(recipe, shape, 141e9, ranks=ranks).fixed for ranks in (1, 8))
    full = plan_memory(recipe.changed(learn={"shard": "full"}), shape, 141e9, ranks=8).fixed
    assert (alone.masters, alone.optimizer) == (4 * shape.parameters, 8 * shape.parameters)
    assert (eight.masters, eight.optimizer) == (0.5 * shape.parameters, shape.parameters)
    assert eight.weights == alone.weights
    for name in ("gradient_sums", "micro_batch_gradients"):
        assert getattr(eight, name) == getattr(alone, name) == 8 * getattr(full, name)
