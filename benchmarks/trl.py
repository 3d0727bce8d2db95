"""Updates per second against TRL's GRPOTrainer: one prompt, one completion, one reward.

Both sides have the same model, prompts, number of rollouts and longest completion, temperature 1,
one optimizer step per update on all rollouts (AdamW, no KL, clip .2, rewards normalised by group),
float32, one thread. Our side is the whole loop of the trainer: play, credit, update, empty cache.
TRL has its faster settings: no gradient checkpointing, fused optimizer, no logging. The learning
rate is TRL's default (1e-6), so that the work of every update is the same.

    notes    embedded model, 8 prompts x 8 members, notes of up to 48 tokens
    free/8   a random Qwen3 (2 layers, width 64), 1 prompt x 8 members (TRL's defaults), up to 64
             tokens; prompts have no common prefix
    free/64  the same with 8 prompts x 8 members
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)
from transformers.utils import logging

from benchmarks.measure import Comparison, Skipped, compare
from benchmarks.workload import make_recipe, play
from mage.config.recipe import Recipe, build_recipe
from mage.credit.samples import assign_credit, make_samples
from mage.engines.base import run
from mage.learn.learner import Learner
from mage.models.base import model_folder
from mage.models.loading import load_model
from mage.seeds import derive
from mage.training.build import build_components
from mage.types import Episode, MetaEpisode, Task, Turn

CASES = ("notes", "free/8", "free/64")
MEMBERS = 8
TARGET = 2.0
LR = 1e-6
INSTALL = "skipped: trl is not installed (`make bench` installs it, or pip install -e '.[peers]')"


# --- The work ----------------------------------------------------------------------------------


def score_note(text: str) -> float:
    return float(text.count("card") + text.count("Moves"))


def score_free(text: str) -> float:
    return text.count("e") / max(1, len(text))


@dataclass(frozen=True, slots=True)
class Work:
    """The work of both sides."""

    recipe: Recipe
    prompts: tuple[str, ...]
    prompts_per_update: int
    longest: int
    score: Callable[[str], float]


def make_work(case: str, folder: Path) -> Work:
    if case == "notes":
        asked = [
            episode.reflection
            for meta in play(build_components(make_recipe("kuhn_poker", "reflections", 16)))
            for episode in meta.episodes
        ]
        recipe = _recipe(8, longest=48)
        return Work(
            recipe,
            _texts(recipe, [turn.prompt_ids for turn in asked if turn is not None]),
            8,
            48,
            score_note,
        )
    save_random_model(folder)
    prompts_per_update = int(case.removeprefix("free/")) // MEMBERS
    recipe = _recipe(prompts_per_update, longest=64, model=str(folder))
    return Work(recipe, random_prompts(64), prompts_per_update, 64, score_free)


def _recipe(groups: int, longest: int, model: str = "embedded") -> Recipe:
    tables = {
        "run": {"threads": 1, "device": "cpu"},
        "model": {"path": model},
        "environments": {"name": "tic_tac_toe"},
        "opponents": {"train": {"random": 1.0}},
        "play": {"groups": groups, "members": MEMBERS, "episodes": 1, "seats": "first"},
        "agent": {"max_tokens": longest},
        "memory": {"name": "notes", "keep": "none"},
        "engines": {"name": "local", "context": 1024},
        "returns": {"kind": "single"},
        "advantages": {"name": "grpo"},
        "learn": {"lr": LR, "beta2": 0.999},
    }
    return build_recipe(tables)


def _texts(recipe: Recipe, prompts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    chat = build_components(recipe).chat
    texts = tuple(
        chat.tokenizer.decode(list(ids), skip_special_tokens=False)
        for ids in dict.fromkeys(prompts)
    )
    assert all(chat.encode(text) in prompts for text in texts), "TRL must get the same ids as play"
    return (texts * 64)[:64]  # TRL needs at least a batch of prompts


def save_random_model(folder: Path) -> None:
    """A small Qwen3 with random weights and the embedded tokenizer."""
    embedded = model_folder(make_recipe("kuhn_poker", "none", 1))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(embedded)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def random_prompts(count: int) -> tuple[str, ...]:
    rng = random.Random(0)
    words = [
        "card", "pass", "bet", "won", "lost", "opponent", "moves", "row", "column", "chips",
        "first", "second", "low", "high", "draw", "board",
    ]  # fmt: skip
    return tuple(" ".join(rng.choices(words, k=32)) for _ in range(count))


# --- Our side ----------------------------------------------------------------------------------


class Ours:
    """Play, credit, update, empty the cache: the loop of the trainer without its files."""

    def __init__(self, work: Work) -> None:
        self.work, self.parts = work, build_components(work.recipe)
        self.learner = Learner(self.parts.model, work.recipe.learn)
        self.done = self.replies = self.tokens = 0

    def train(self, updates: int) -> float:
        began = time.process_time()
        for _ in range(updates):
            self._update()
        return time.process_time() - began

    def _update(self) -> None:
        self.done += 1
        metas = self._play()
        metrics = self.learner.update(
            make_samples(
                assign_credit(metas, self.work.recipe.returns, self.work.recipe.estimator())
            ),
            entropy=0.0,
            update=self.done,
        )
        self.parts.engine.refresh(self.done)
        self.replies += metrics.samples
        self.tokens += metrics.reply_tokens

    def _play(self) -> list[MetaEpisode]:
        count, prompts = self.work.prompts_per_update, self.work.prompts
        chosen = [prompts[(self.done * count + group) % len(prompts)] for group in range(count)]
        return run(
            self._complete(text, group, member)
            for group, text in enumerate(chosen)
            for member in range(MEMBERS)
        )

    async def _complete(self, prompt: str, group: int, member: int) -> MetaEpisode:
        """A meta-episode of one reply, scored by the reward function."""
        agent = self.parts.agent(evaluating=False)
        agent = replace(
            agent, sampling=replace(agent.sampling, reflection_tokens=self.work.longest)
        )
        ids = self.parts.chat.encode(prompt)
        completion = await agent.write(ids, derive("write", self.done, group, member))
        turn = Turn("play", prompt, prompt, ids, completion, None, (), True, 0.0)
        score = self.work.score(completion.text)
        episode = Episode((turn,), None, (), score, score, "won", "finished", "")
        return MetaEpisode(
            Task("completion", group, 0, "none", "train"),
            group,
            member,
            (episode,),
            ("",),
            self.done,
        )


# --- Trl's side --------------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Processor time at the end of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends.append(time.process_time())


class Theirs:
    """GRPOTrainer on the same work. Its setup and first step are not counted."""

    def __init__(self, work: Work, updates: int, folder: Path) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        logging.set_verbosity_error()
        self.work, self.clock, self.replies, self.tokens = work, Clock(), 0, 0
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder(work.recipe))
        options = GRPOConfig(
            output_dir=str(folder),
            max_steps=updates + 1,
            per_device_train_batch_size=work.prompts_per_update * MEMBERS,
            num_generations=MEMBERS,
            max_completion_length=work.longest,
            temperature=1.0,
            learning_rate=LR,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        self.trainer = GRPOTrainer(
            model=load_model(model_folder(work.recipe), "float32", "cpu"),
            reward_funcs=self._reward,
            args=options,
            train_dataset=Dataset.from_dict({"prompt": list(work.prompts)}),
            processing_class=tokenizer,
            callbacks=[self.clock],
        )
        self.trainer.remove_callback(PrinterCallback)

    def _reward(
        self, completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        self.replies += len(completions)
        self.tokens += sum(map(len, completion_ids))
        return [self.work.score(text) for text in completions]

    def train(self) -> float:
        self.trainer.train()
        return self.clock.ends[-1] - self.clock.ends[0]


# --- Comparison --------------------------------------------------------------------------------


def is_installed() -> bool:
    return find_spec("trl") is not None


def measure(
    cases: Sequence[str] = CASES, updates: int = 5, rounds: int = 3
) -> Iterator[Comparison]:
    """Updates per second."""
    if not is_installed():
        raise Skipped(INSTALL)
    for case in cases:
        yield _measure_case(case, updates, rounds)


def _measure_case(case: str, updates: int, rounds: int) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(case, Path(folder) / "model")
        ours, theirs = Ours(work), Theirs(work, updates, Path(folder) / "trl")
        found = compare(
            "trl",
            case,
            ("mage", "trl"),
            "updates",
            updates,
            (lambda: ours.train(updates), theirs.train),
            rounds,
        )
    lengths = [side.tokens / side.replies for side in (ours, theirs)]
    note = f"{work.prompts_per_update * MEMBERS} rollouts; "
    note += f"{lengths[0]:.1f} and {lengths[1]:.1f} tokens per completion"
    return replace(found, note=note, target=TARGET)
