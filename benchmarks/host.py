"""Processor seconds of one update without the model's computation, by part.

    python -m benchmarks.host smollm2_alfworld --tokenizer FOLDER
    python -m benchmarks.host kuhn_poker --change=--play.groups=2

Tasks, prompts, tokenizer, the engine's loop of a GPU and the learner are the recipe's own. The
model is not: every request gets the reply that a script (the expert with noise, else random moves)
gave to the same request before, and the learner gets logprobs of 0. So what is left is the work
that a GPU would wait for. `--profile FILE` writes a profile of one update (cProfile).
"""

import argparse
import cProfile
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.workload import last_stage
from mage.agent.agent import _diverging
from mage.agent.chat import Chat
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.credit.samples import assign_credit, make_samples
from mage.engines.base import run
from mage.engines.local import LocalEngine
from mage.learn.imitate.scripted import DemonstrationPlayer, Script
from mage.learn.learner import Learner
from mage.learn.loss import Scores
from mage.learn.pack.packing import Packed
from mage.models.base import base_folder, find_model
from mage.play import PlaySetup, play_groups, play_meta_episode
from mage.seeds import derive
from mage.training.build import Components
from mage.training.metrics import credit_sums, means, play_sums
from mage.training.tasks import draw_tasks
from mage.types import Request

Replies = dict[int, tuple[int, ...]]  # by the seed of the request


def read_recipe(name: str, changes: Sequence[str]) -> Recipe:
    """A recipe for the CPU; of one with stages the last."""
    recipe = last_stage(load_recipe(name, changes))
    return recipe.changed(run={"device": "cpu"}, engines={"run_ahead": True})


def build(recipe: Recipe, tokenizer: Path | None) -> Components:
    """A model of two channels that is never computed, with a real tokenizer."""
    chat = Chat.load(tokenizer or base_folder(recipe), recipe.agent.thinking)
    config = LlamaConfig(
        vocab_size=chat.tokenizer.get_vocab_size(), hidden_size=2, intermediate_size=2,
        num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=2**15,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return Components(recipe, model, chat, recipe.engine()(model, chat))


def record(
    setup: PlaySetup, tasks_PG: Sequence[Sequence[Any]], seed: int, noise: float = 0.3
) -> Replies:
    """The replies of a scripted player to all requests of an update."""
    found: Replies = {}
    known = setup.environment.inside().values()
    script = Script(expert=any(_has_expert(world) for world in known), noise=noise)

    def play(task: Any, group: int, member: int) -> Any:
        own = derive(seed, group, member)
        player = DemonstrationPlayer(setup, task, own, script)
        engine: Any = player.setup.agent.engine
        answer = engine.reply

        def reply(request: Request) -> str:
            text: str = answer(request)
            found[request.seed] = setup.agent.chat.encode(text)
            return text

        engine.reply = reply
        return play_meta_episode(
            player.setup, task, group, member, own, on_start=player.states.append
        )

    run(
        play(task, group, member)
        for group, tasks in enumerate(tasks_PG)
        for member, task in enumerate(tasks)
    )
    return found


def _has_expert(world: Any) -> bool:
    return world.for_split("train").start(0).expert() is not None


class Replay:
    """Answers the steps of an engine's loop with recorded replies in place of its model."""

    def __init__(self, engine: LocalEngine) -> None:
        assert engine.loop is not None, "the engine runs ahead"
        self.loop, self.requests = engine.loop, engine.sequences.requests
        self.replies: Replies = {}
        self.written = [0] * engine.slots.count
        self.launch, self.step = engine.loop.launch, engine.step
        self.seconds = {"engine": 0.0, "script": 0.0}  # the second is part of the first
        engine.step = self._step  # type: ignore[method-assign]
        engine.loop.launch = self._launch  # type: ignore[assignment, method-assign]
        engine.loop._run = lambda key, body: None  # type: ignore[method-assign]

    def _step(self) -> Any:
        began = time.process_time()
        answered = self.step()
        self.seconds["engine"] += time.process_time() - began
        return answered

    def _launch(self, joining: Any, decoding: Any, *rest: Any) -> Any:
        began = time.process_time()
        joined = [] if joining is None else joining.slots[joining.ready].tolist()
        for slot in joined:
            self.written[slot] = 0
        for answers, slots in zip(self.loop.answers, (joined, decoding.tolist()), strict=True):
            answers[0, : len(slots)] = torch.tensor([self._next(slot) for slot in slots])
        self.seconds["script"] += time.process_time() - began
        return self.launch(joining, decoding, *rest)

    def _next(self, slot: int) -> int:
        request, place = self.requests[slot], self.written[slot]
        self.written[slot] += 1
        reply = self.replies[request.seed] if request is not None else ()
        return reply[place] if place < len(reply) else 0  # a reply that ended is noticed late


class HostLearner(Learner):
    """A learner that packs, sums and steps as always, with logprobs of 0."""

    def _score(self, model: Any, packed: Packed) -> Scores:
        zero = model.get_input_embeddings().weight[0, 0].float() * 0
        tokens, places = len(packed.replies), len(packed.replies.choice_parents)
        return Scores(zero.expand(tokens), zero.expand(tokens).detach(), zero.expand(places))


class Update:
    """Updates of a recipe one after another, with the seconds of their parts."""

    def __init__(self, recipe: Recipe, tokenizer: Path | None) -> None:
        self.recipe, self.parts, self.number = recipe, build(recipe, tokenizer), 0
        self.learner = HostLearner(
            self.parts.weights(), recipe.learn.model_copy(update={"lora_rank": 0}), layout="trie"
        )
        engine: Any = self.parts.engine
        self.engine: LocalEngine = engine
        self.replay = Replay(engine)
        self.shape = SimpleNamespace()

    def begin(self) -> None:
        """Draw the tasks of the next update and write the script; its caches are dropped."""
        self.number += 1
        self.tasks_PG = draw_tasks(self.recipe, self.number)
        self.seed = derive(self.recipe.run.seed, "play", self.number)
        self.replay.replies = record(self.parts.begin_play(), self.tasks_PG, self.seed)
        for texts in (self.parts.chat.encode, self.parts.chat.decode, _diverging):
            texts.cache_clear()  # type: ignore[attr-defined]

    def __call__(self) -> dict[str, float]:
        seconds: dict[str, float] = {}

        def part(name: str, work: Callable[[], Any]) -> Any:
            began = time.process_time()
            done = work()
            seconds[name] = time.process_time() - began
            return done

        recipe, engine, replay = self.recipe, self.engine, self.replay
        self.engine.refresh(0)
        before, replay.seconds = engine.stats.steps, dict.fromkeys(replay.seconds, 0.0)
        setup = self.parts.begin_play()
        metas = part("play", lambda: play_groups(setup, self.tasks_PG, self.seed))
        seconds["worlds"] = seconds.pop("play") - replay.seconds["engine"]
        seconds["engine"] = replay.seconds["engine"] - replay.seconds["script"]
        self.metas = metas
        credits = part("credit", lambda: assign_credit(metas, recipe.returns, recipe.estimator()))
        samples = part("samples", lambda: make_samples(credits))
        part("learn", lambda: self.learner.update(samples, entropy=0.1, update=0))
        part("figures", lambda: means([play_sums(metas, False, False) | credit_sums(credits)]))
        self.shape = SimpleNamespace(
            steps=engine.stats.steps - before,
            turns=sum(len(episode.turns) for meta in metas for episode in meta.episodes),
            rows=len(samples),
            row_tokens=sum(len(one.prompt_ids) + len(one.reply_ids) for one in samples),
        )
        return seconds | {"total": sum(seconds.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--tokenizer", help="folder or name of the model whose tokenizer is used")
    parser.add_argument("--change", action="append", default=[], metavar="--OPTION=VALUE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path, help="file for a profile of one more update")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = find_model(args.tokenizer) if args.tokenizer else None
    for name in args.recipes:
        update = Update(read_recipe(name, args.change), tokenizer)
        gc.freeze()  # as a training does: what is loaded by now is not visited again
        rounds = []
        for _ in range(args.rounds + 1):
            update.begin()
            rounds.append(update())
        del rounds[0]  # it loads what later updates find loaded
        found = {part: median(one[part] for one in rounds) for part in rounds[0]}
        shape = ", ".join(f"{key} {value:,}" for key, value in vars(update.shape).items())
        figures = "  ".join(f"{part} {seconds:.3f}" for part, seconds in found.items())
        print(f"{name:20} {figures}   ({shape})", flush=True)
        if args.profile:
            update.begin()
            profile = cProfile.Profile()
            profile.runcall(update)
            profile.dump_stats(args.profile)
        del update
        gc.unfreeze()
        gc.collect()


if __name__ == "__main__":
    main()
