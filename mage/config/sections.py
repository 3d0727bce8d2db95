"""The sections of a recipe: every option with its default, its bounds and what it does.

A menu section is a `Choice`: the name of an item, with that item's own options beside it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mage.config.toml import Tables
from mage.types import Split


class Section(BaseModel):
    """A table of a recipe: every key is known, every value has the type it says."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunOptions(Section):
    """[run]: how long, how often, where."""

    name: str = Field(
        "",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$",
        description="the run's folder: letters, digits, _ . -; empty = the recipe's name and a number",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="every random choice of the run is derived from it"
    )
    updates: int = Field(100, ge=0, description="optimizer rounds: play, credit, learn")
    save_every: int = Field(10, ge=1, description="updates between checkpoints")
    keep: int = Field(2, ge=1, description="newest checkpoints kept; the best one is always kept")
    evaluate_every: int = Field(
        10,
        ge=0,
        description="updates between evaluations on the select panel; 0 = only before and after",
    )
    episodes_every: int = Field(
        10, ge=0, description="updates between stored transcripts; 0 = none"
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that share the groups of an update; results depend on their number",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="torch threads of a worker; 0 = one for a tiny model, else the cores, shared out evenly",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        description="auto, cpu, mps, cuda or cuda:N",
    )


class ModelOptions(Section):
    """[model]: the policy's starting weights."""

    path: str = Field(
        "embedded",
        min_length=1,
        description="'embedded' or 'embedded-worlds' for a model that ships with MAGE, a name of `mage model list`, or a folder",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "auto",
        description="numbers the weights are held in; auto = float32 on CPU, bfloat16 on CUDA",
    )


class OpponentOptions(Section):
    """[opponents]: name -> share, for every split."""

    train: dict[str, float] = Field({}, description="whom the agent meets in training")
    test: dict[str, float] = Field(
        {}, description="whom it meets in evaluation; empty = as in train"
    )
    ood: dict[str, float] = Field({}, description="opponents it has never trained against")


class PlayOptions(Section):
    """[play]: the shape of meta-episodes and groups, and the penalties."""

    episodes: int = Field(3, ge=1, le=100, description="episodes in a meta-episode (N)")
    groups: int = Field(16, ge=1, description="tasks an update")
    members: int = Field(
        8, ge=2, description="meta-episodes of one task (G); a baseline needs at least two"
    )
    seats: Literal["first", "second", "both"] = Field(
        "both", description="where the agent sits; both = half the tasks each"
    )
    numbered: bool = Field(
        True,
        description="tell the agent which of how many games it plays; false = each is told as game 1 of 1",
    )
    stop_on_success: bool = Field(
        False, description="end a meta-episode at the first win, as the published code does"
    )
    grouping: Literal["stationary", "mixed"] = Field(
        "stationary", description="stationary = members share the opponent; mixed is the ablation"
    )
    illegal_penalty: float = Field(
        0.5, ge=0, description="taken from the reward of a turn without a legal action"
    )
    length_penalty: float = Field(
        0.0,
        ge=0,
        description="most that is taken from the reward of a reply near its length limit (lambda)",
    )


class AgentOptions(Section):
    """[agent]: what the prompt shows beside the game, and how replies are sampled in training."""

    examples: int = Field(
        0,
        ge=0,
        le=16,
        description="worked examples at the head of every game, as turns of the chat with random legal moves",
    )
    temperature: float = Field(
        1.0, gt=0, le=10, description="sampling temperature; loss and logprobs use the same"
    )
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling; 1 = off")
    top_k: int = Field(0, ge=0, description="sample among the k most likely tokens; 0 = off")
    max_tokens: int = Field(256, ge=1, description="longest reply with an action")
    reflection_tokens: int = Field(256, ge=1, description="longest reflection")


class Choice(BaseModel):
    """A menu section: the item's name, and the item's own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(
        min_length=1, description="a file of the menu folder, or a dotted path into another package"
    )

    @property
    def options(self) -> Tables:
        return dict(self.model_extra or {})


class MemoryChoice(Choice):
    name: str = Field("notes", min_length=1, description="what is carried from episode to episode")


class EngineChoice(Choice):
    name: str = Field("local", min_length=1, description="what turns prompts into replies")


class EstimatorChoice(Choice):
    name: str = Field("gigpo", min_length=1, description="how returns become advantages")


class ReturnOptions(Section):
    """[returns]: what follows a turn, as one number (method page, section 2)."""

    kind: Literal["differential", "cumulative", "single", "final"] = Field(
        "differential", description="the meta-reward"
    )
    step_discount: float = Field(
        0.95, ge=0, le=1, description="discount from turn to turn in an episode"
    )
    episode_discount: float = Field(0.6, ge=0, le=1, description="discount from episode to episode")
    propagation: Literal["code", "paper"] = Field(
        "code", description="whether the step discount also shrinks what comes from later episodes"
    )
    weights: tuple[float, ...] | None = Field(
        None, strict=False, description="one weight an episode, with kind = 'final'"
    )


class LearnOptions(Section):
    """[learn]: the loss and the optimizer (method page, section 5)."""

    lr: float = Field(3e-4, gt=0, le=1, description="learning rate of AdamW")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW's decay of the squared gradient")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's weight decay")
    warmup: int = Field(0, ge=0, description="updates over which the learning rate rises from 0")
    decay: float = Field(
        1.0,
        ge=0,
        le=1,
        description="fraction of the learning rate reached linearly at the last update; 1 = constant",
    )
    minibatches: int = Field(1, ge=1, description="optimizer steps an epoch")
    epochs: int = Field(1, ge=1, description="passes over an update's samples")
    clip: float = Field(
        0.2, gt=0, lt=1, description="PPO clip below 1, and above it too unless clip_high is given"
    )
    clip_high: float | None = Field(None, gt=0, description="PPO clip above 1")
    dual_clip: float | None = Field(
        3.0, gt=1, description="bound on the ratio where the advantage is negative"
    )
    kl: float = Field(0.0, ge=0, description="weight of the KL to the frozen starting model")
    entropy: float = Field(
        0.0, ge=0, description="weight of the entropy of the action at the start"
    )
    entropy_final: float = Field(
        0.0, ge=0, description="weight of that entropy at the last update, reached linearly"
    )
    reflect_from: int = Field(
        0,
        ge=0,
        description="updates before reflections are credited: until the policy reads them, what follows them is noise to them",
    )
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    tree_tokens: int | None = Field(
        None,
        ge=1,
        description="most tokens of one prefix tree; not given = trees are merged while that saves time",
    )
    micro_tokens: int = Field(16384, ge=1, description="tokens computed at once")
    packed: bool = Field(True, description="compute shared prefixes once")
    recompute: bool = Field(
        False,
        description="compute layers again in the backward pass instead of keeping what is inside them: less memory, a third more work",
    )
    lora_rank: int = Field(0, ge=0, description="rank of the LoRA adapters; 0 = train all weights")
    lora_alpha: float | None = Field(
        None, gt=0, description="scale of the LoRA adapters; twice the rank if not given"
    )
    importance_cap: float | None = Field(
        None,
        ge=1,
        description="cap on learner / sampler probability as a weight on the loss; not given = no such weight",
    )

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2

    def lr_at(self, update: int, total: int) -> float:
        """Learning rate of update 0, 1, .. `total` - 1."""
        rise = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, max(0, update - self.warmup) / max(1, total - 1 - self.warmup))
        return self.lr * rise * (1 - (1 - self.decay) * fall)

    def entropy_at(self, update: int, total: int) -> float:
        """Weight of the entropy in update 0, 1, .. `total` - 1."""
        return self.entropy + (self.entropy_final - self.entropy) * min(
            1.0, update / max(1, total - 1)
        )


class WarmupOptions(Section):
    """[warmup]: the supervised stage of `mage warmup`. Training reads none of it unless it is to come first, so a recipe may say it for both."""

    first: bool = Field(
        False,
        description="training begins with the warm-up and keeps what it made in the run folder",
    )
    steps: int = Field(
        24, ge=0, le=100_000, description="optimizer steps; 0 = measure only, write no model"
    )
    batch: int = Field(8, ge=1, description="scripted replies a step")
    lr: float = Field(
        1e-4,
        gt=0,
        le=1,
        description="learning rate of AdamW at its highest; it falls linearly to a tenth",
    )
    turns: int = Field(
        64, ge=1, description="situations in which the model is asked for a move, before and after"
    )


class EvaluateOptions(Section):
    """[evaluate]: the fixed panels and how replies are sampled there."""

    size: int = Field(240, ge=1, description="tasks of the panel that chooses checkpoints")
    final_size: int = Field(1200, ge=1, description="tasks of the panel behind the final figures")
    temperature: float = Field(
        0.7, ge=0, le=10, description="sampling temperature; 0 = the most likely token"
    )
    top_p: float = Field(0.8, gt=0, le=1, description="nucleus sampling; 1 = off")
    top_k: int = Field(20, ge=0, description="sample among the k most likely tokens; 0 = off")
    episodes: int = Field(0, ge=0, le=100, description="episodes in a meta-episode; 0 = as in play")
    splits: tuple[Split, ...] = Field(
        ("test",),
        strict=False,
        min_length=1,
        description="pools that are evaluated: train, test, ood",
    )
