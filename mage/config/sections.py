"""The sections of a recipe: every option with its default, its bounds and its meaning.

A menu section is a `Choice`: the name of an item and the options of that item.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from mage.config.toml import Tables
from mage.types import PromptStyle, Split

Seats = Literal["first", "second", "both"]
Logger = Literal["tensorboard", "csv", "wandb", "trackio", "mlflow"]


def _split_words(value: object) -> object:
    """Words with commas, as on the command line, are a list."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


class Section(BaseModel):
    """A table of a recipe: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunOptions(Section):
    """[run]: length of the run, intervals, processes and device."""

    name: str = Field(
        "",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$",
        description="run folder (letters, digits, _ . -); empty = recipe name and a number",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="all random numbers of the run are derived from it"
    )
    updates: int = Field(100, ge=0, description="updates; one update = play, assign credit, learn")
    minutes: float | None = Field(
        None,
        gt=0,
        description="minutes of all updates together, after which training ends as it does after "
        "run.updates; the final panels follow, and schedules follow run.updates; not given = no "
        "limit",
    )
    save_every: int = Field(10, ge=1, description="updates between checkpoints")
    keep: int = Field(
        2, ge=1, description="number of newest checkpoints to keep; the best one is always kept"
    )
    evaluate_every: int = Field(
        10,
        ge=0,
        description="updates between evaluations on the select panel; 0 = only first and last",
    )
    episodes_every: int = Field(
        10, ge=0, description="updates between stored transcripts; 0 = none"
    )
    keep_transcripts: int = Field(
        50,
        ge=0,
        description="stored updates whose transcripts are kept, the newest ones; 0 = all; those "
        "of evaluations are always kept",
    )
    move_probabilities: bool = Field(
        True, description="store the probabilities of all legal moves with the transcripts"
    )
    workers: int = Field(1, ge=1, le=64, description="processes that share the work of an update")
    deal: Literal["members", "groups"] = Field(
        "members",
        description="what workers share: members (equal results for any number of workers) or "
        "groups (mini-batches depend on the number of workers)",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="torch threads of a worker; 0 = one for a tiny model, else cores / workers",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        description="auto, cpu, mps, cuda or cuda:N",
    )
    gpu_memory: float | None = Field(
        None, gt=0, description="GPU memory for the run (GB); not given = what is free on the GPU"
    )
    loggers: Annotated[tuple[Logger, ...], BeforeValidator(_split_words)] = Field(
        ("tensorboard",),
        strict=False,
        description="other tools that receive a copy of the figures, as in tensorboard,wandb",
    )


class ModelOptions(Section):
    """[model]: the policy's starting weights."""

    path: str = Field(
        "embedded",
        min_length=1,
        description="'embedded', 'embedded-worlds', 'embedded-rps', 'embedded-roshambo', "
        "'embedded-kuhn', 'embedded-doors' or 'embedded-bandit' (they ship with MAGE), a name of "
        "`mage model list`, a folder, or ORG/NAME or ORG/NAME@REVISION of the model hub",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "auto", description="number format of the weights; auto = float32 on CPU, bfloat16 on CUDA"
    )


class OpponentOptions(Section):
    """[opponents]: name -> share, for each split."""

    train: dict[str, float] = Field(
        {}, description="opponents in training: random, several with commas, or each with its share"
    )
    test: dict[str, float] = Field({}, description="opponents in evaluation; empty = as in train")
    ood: dict[str, float] = Field({}, description="opponents that do not occur in training")

    @field_validator("train", "test", "ood", mode="before")
    @classmethod
    def _as_shares(cls, value: object) -> object:
        return _as_weights(value)


class PlayOptions(Section):
    """[play]: the shape of meta-episodes and groups, and the penalties."""

    episodes: int = Field(3, ge=1, le=100, description="episodes in a meta-episode (N)")
    groups: int = Field(16, ge=1, description="tasks per update")
    members: int = Field(
        8, ge=2, description="meta-episodes per task (G); a baseline needs at least two"
    )
    seats: Seats = Field(
        "both", description="seat of the agent in training; both = half of the tasks each"
    )
    numbered: bool = Field(
        True, description="show the game number in the prompt; false = always game 1 of 1"
    )
    stop_on_success: bool = Field(
        False, description="end a meta-episode at the first win, as the published code does"
    )
    grouping: Literal["stationary", "mixed"] = Field(
        "stationary", description="stationary = members share the opponent; mixed = ablation"
    )
    illegal_penalty: float = Field(
        0.5, ge=0, description="penalty for a turn without a legal action"
    )
    length_penalty: float = Field(
        0.0,
        ge=0,
        description="largest penalty for a long reply (lambda); it starts at half the token limit",
    )
    rewards: dict[str, float] | None = Field(
        None,
        description="functions of a finished episode that add to its reward, by dotted path: "
        "my_lab.format_bonus, several with commas, or each with its weight",
    )

    @field_validator("rewards", mode="before")
    @classmethod
    def _as_shares(cls, value: object) -> object:
        return _as_weights(value)


def _as_weights(value: object) -> object:
    """Names with weights: `random,cfr` (each 1), `random=.8,cfr=.2`, a list or a table.

    The command line gives dotted paths as tables in tables.
    """
    if isinstance(value, str):
        pairs = [[part.strip() for part in word.split("=")] for word in value.split(",")]
        if all(len(pair) <= 2 for pair in pairs):
            return {name: float(*weight) if weight else 1.0 for name, *weight in pairs}
    if isinstance(value, list | tuple):
        return {str(name): 1.0 for name in value}
    return dict(_join_keys(value)) if isinstance(value, dict) else value


def _join_keys(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Tables in tables as dotted paths; whole numbers as weights."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _join_keys(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", _as_float(value) if type(value) is int else value


def _as_float(number: int) -> float:
    """A whole number as a weight; infinity, which no weight may be, if it is too large."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


class AgentOptions(Section):
    """[agent]: prompt options, and how replies are sampled in training."""

    prompts: PromptStyle = Field(
        "chat",
        description="chat = rules in a system message and a chat that grows; published = one user "
        "message a turn with the content of the published prompts (docs/prompts.md)",
    )
    temperature: float = Field(
        1.0, gt=0, le=10, description="sampling temperature; loss and logprobs use the same"
    )
    thinking: Literal["auto", "on", "off"] = Field(
        "auto",
        description="thoughts before the action, for chat templates with such a switch; "
        "auto = the template's default",
    )
    think_first: bool = Field(
        False,
        description="the prompt asks for one short sentence before the action, and the history of "
        "the episode keeps it",
    )
    example: bool = Field(
        True,
        description="the rules show an example of an answer; false = its form only, so that no "
        "move is suggested",
    )
    window: int | None = Field(
        None,
        ge=1,
        description="latest turns of an episode that the prompt shows in full; "
        "older ones are named in one line; not given = all",
    )
    fold: int = Field(
        1, ge=1, description="turns folded at once beyond the window or when the context is full"
    )
    past_turns: bool = Field(
        True,
        description="the prompt shows past turns of the episode; false = the present observation "
        "only, for environments whose observation is complete",
    )
    max_tokens: int = Field(256, ge=1, description="token limit of a reply with an action")
    reflection_tokens: int = Field(256, ge=1, description="token limit of a reflection")
    tool_calls: int = Field(
        4, ge=0, description="calls of tools in one turn; 0 = tools are not offered"
    )
    tool_seconds: float = Field(10.0, gt=0, description="time limit of a call; then it is stopped")
    tool_characters: int = Field(
        2000, ge=1, description="length limit of a tool's result; the rest is cut"
    )

    def shown_window(self) -> int | None:
        """The latest turns that a prompt shows in full; None = all, 0 = no past turn at all."""
        return self.window if self.past_turns else 0


class Stage(BaseModel):
    """A stage of a training: its name, and the sections that it changes."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="letters, digits, _ and -"
    )

    @property
    def changes(self) -> Tables:
        return dict(self.model_extra or {})


class Choice(BaseModel):
    """A menu section: the name of an item and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(
        min_length=1, description="a file of the menu folder, or a dotted path into another package"
    )

    @property
    def options(self) -> Tables:
        return dict(self.model_extra or {})


class MemoryChoice(Choice):
    name: str = Field(
        "notes",
        min_length=1,
        description="memory between episodes: a file of mage/memory, or a dotted path",
    )


class EngineChoice(Choice):
    name: str = Field(
        "local", min_length=1, description="sampler: a file of mage/engines, or a dotted path"
    )


class EstimatorChoice(Choice):
    name: str = Field(
        "gigpo",
        min_length=1,
        description="estimator: a file of mage/credit/advantages, or a dotted path",
    )


class ReturnOptions(Section):
    """[returns]: the return of a turn (docs/concepts.md)."""

    kind: Literal["differential", "cumulative", "single", "final", "balanced"] = Field(
        "differential", description="reward at the end of each episode"
    )
    step_discount: float = Field(
        0.95, ge=0, le=1, description="discount between turns of an episode"
    )
    episode_discount: float = Field(0.6, ge=0, le=1, description="discount between episodes")
    propagation: Literal["code", "paper"] = Field(
        "code",
        description="code = the step discount also applies to later episodes; paper = it does not",
    )
    penalties: bool = Field(
        True, description="penalties of replies are part of the returns; false = as published"
    )
    weights: tuple[float, ...] | None = Field(
        None, strict=False, description="one weight per episode, with kind = 'final'"
    )
    own_difference: bool = Field(
        True,
        description="differential: subtract the reward of the episode before also in the returns "
        "of the episode itself; false = only in those of earlier episodes, which has less noise",
    )
    per_turn: bool = Field(
        False,
        description="rewards at the turn where they are scored; for environments that score "
        "during an episode (rock_paper_scissors)",
    )


class LearnOptions(Section):
    """[learn]: the loss and the optimizer (docs/concepts.md)."""

    lr: float = Field(3e-4, gt=0, le=1, description="learning rate of AdamW")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW: decay of the squared gradient")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW: weight decay")
    warmup: int = Field(0, ge=0, description="updates over which the learning rate rises from 0")
    decay: float = Field(
        1.0,
        ge=0,
        le=1,
        description="final fraction of the learning rate, reached linearly; 1 = constant",
    )
    minibatches: int = Field(1, ge=1, description="optimizer steps per epoch")
    minibatch_rows: int | None = Field(
        None,
        ge=1,
        description="largest number of rows per optimizer step; not given = `minibatches` steps",
    )
    epochs: int = Field(1, ge=1, description="passes over an update's samples")
    clip: float = Field(0.2, gt=0, lt=1, description="PPO clip: ratios from 1 - clip to 1 + clip")
    dual_clip: float | None = Field(
        3.0, gt=1, description="bound on the ratio if the advantage is negative"
    )
    kl: float = Field(0.0, ge=0, description="weight of the KL to the frozen starting model")
    entropy: float = Field(
        0.0, ge=0, description="weight of the action entropy at the first update"
    )
    entropy_final: float = Field(
        0.0, ge=0, description="weight of the action entropy at the last update, reached linearly"
    )
    token_entropy: float = Field(
        0.0,
        ge=0,
        description="weight of the mean entropy of reply tokens over the vocabulary, as published",
    )
    reflect_from: int = Field(
        0,
        ge=0,
        description="first update in which reflections get an advantage; before it they get 0",
    )
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    tree_tokens: int | None = Field(
        None,
        ge=1,
        description="token limit of one prefix tree; not given = trees merge while that saves time",
    )
    micro_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens per micro-batch; not given = as many as fit on the GPU, at most 16384 "
        "(8192 from 2 B parameters on)",
    )
    packed: bool = Field(True, description="compute shared prompt prefixes once")
    recompute: bool | None = Field(
        None,
        description="recompute activations in the backward pass: less memory, a third more work; "
        "not given = only if the GPU needs it",
    )
    graphs: bool = Field(
        False,
        description="on a GPU, learn with layers recorded as CUDA graphs: less work for the host "
        "with a small model and adapters (lora_rank); their activations stay in memory",
    )
    shard: Literal["none", "optimizer", "full"] = Field(
        "none",
        description="what the ranks divide among them: nothing, the optimizer state (equal "
        "results), or all weights, gradients and state that are trained (FSDP2)",
    )
    lora_rank: int = Field(0, ge=0, description="rank of the LoRA adapters; 0 = train all weights")

    @property
    def tokens_at_once(self) -> int:
        """Tokens per micro-batch."""
        return self.micro_tokens or 16384

    @property
    def betas(self) -> tuple[float, float]:
        return 0.9, self.beta2

    def lr_at(self, update: int, total: int) -> float:
        """Learning rate of update 0, 1, ..., `total` - 1."""
        rise = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, max(0, update - self.warmup) / max(1, total - 1 - self.warmup))
        return self.lr * rise * (1 - (1 - self.decay) * fall)

    def entropy_at(self, update: int, total: int) -> float:
        """Weight of the entropy in update 0, 1, ..., `total` - 1."""
        return self.entropy + (self.entropy_final - self.entropy) * min(
            1.0, update / max(1, total - 1)
        )


class Sampler(NamedTuple):
    """How a token is drawn."""

    temperature: float
    top_p: float
    top_k: int


class EvaluateOptions(Section):
    """[evaluate]: the fixed panels, and how replies are sampled in evaluation."""

    size: int = Field(
        240, ge=1, description="tasks of the select panel (it chooses the best checkpoint)"
    )
    final_size: int = Field(
        1200, ge=1, description="tasks of the final panel (it gives the reported figures)"
    )
    plays: int = Field(
        1,
        ge=1,
        le=1000,
        description="how often each task of the final panel is played; intervals are over tasks",
    )
    temperature: float | None = Field(
        None,
        ge=0,
        le=10,
        description="sampling temperature; 0 = the most likely token; not given = as in agent",
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="nucleus sampling; not given or 1 = off"
    )
    top_k: int | None = Field(
        None, ge=0, description="sample among the k most likely tokens; not given or 0 = off"
    )
    episodes: int = Field(0, ge=0, le=100, description="episodes in a meta-episode; 0 = as in play")
    seats: Seats | None = Field(
        None, description="seat of the agent in evaluation; not given = as in play"
    )
    ood_seats: Seats | None = Field(
        None, description="seat of the agent out of domain; not given = as in seats"
    )
    select_split: Split = Field(
        "test", description="split of the select panel; it shares no instance with the final panel"
    )
    splits: Annotated[tuple[Split, ...], BeforeValidator(_split_words)] = Field(
        ("test",),
        strict=False,
        min_length=1,
        description="splits to evaluate: train, test, ood; several with commas",
    )
    before: bool = Field(
        True, description="also play the final panel before training; false saves time"
    )
    ceilings: bool = Field(True, description="compute exact bounds beside the scores")
