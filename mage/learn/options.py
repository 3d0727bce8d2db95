"""The options of learning, apart from the learner so that a recipe can be checked without loading torch."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LearnOptions(BaseModel):
    """Section `learn` of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lr: float = Field(1e-6, gt=0, description="peak learning rate of AdamW")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments, each in [0, 1)")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay")
    warmup: int = Field(0, ge=0, description="updates over which the learning rate rises linearly to lr")
    decay: float = Field(1.0, ge=0, le=1, description="fraction of lr that the last update has, reached linearly; 1 = constant")
    minibatches: int = Field(1, ge=1, description="optimizer steps an update's meta-episodes are split into")
    epochs: int = Field(1, ge=1, description="passes over an update's samples")
    clip: float = Field(0.2, gt=0, lt=1, description="PPO clip range: below 1 - clip the ratio earns nothing more")
    clip_high: float | None = Field(None, gt=0, description="upper clip range; none = the same as clip")
    dual_clip: float | None = Field(3.0, gt=1, description="largest ratio that a negative advantage is charged for; none = off")
    kl: float = Field(0.0, ge=0, description="coefficient of the KL to the frozen reference; 0 keeps no reference")
    entropy: float = Field(0.0, ge=0, description="coefficient of the entropy of the ACTION tokens in the first update")
    entropy_final: float | None = Field(None, ge=0, description="the coefficient in the last update, reached linearly; none = constant")
    grad_clip: float = Field(1.0, gt=0, description="largest norm of a step's gradient; larger ones are scaled down")
    packed: bool = Field(True, description="share prefixes between samples (exact); false = one padded row per sample")
    tree_tokens: int | None = Field(
        None, ge=1, description="tokens below the root up to which a group's trie stays whole; none = as is cheapest"
    )
    micro_tokens: int = Field(4096, ge=1, description="tokens per forward and backward pass; bounds memory, changes no result")
    lora_rank: int | None = Field(None, ge=1, description="train LoRA adapters of this rank in all linear layers; none = all weights")
    lora_alpha: float | None = Field(None, gt=0, description="LoRA scale, applied as alpha / rank; none = twice the rank")
    importance_cap: float | None = Field(
        None, ge=1, description="correct for logprobs that differ between sampler and learner by weights truncated here; none = off"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas}: each must lie in [0, 1)")
        if self.lora_alpha is not None and self.lora_rank is None:
            raise ValueError("lora_alpha has no effect without lora_rank: give a rank or leave it out")
        if self.tree_tokens is not None and not self.packed:
            raise ValueError("tree_tokens has no effect with packed = false: leave one of them out")
        return self

    def lr_at(self, update: int, total: int | None) -> float:
        """Learning rate of update 0, 1, .. `total` - 1."""
        rise = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        if self.decay == 1.0:
            return self.lr * rise
        if total is None:
            raise ValueError(f"decay = {self.decay} needs the total number of updates")
        fall = min(1.0, max(0, update - self.warmup) / max(1, total - 1 - self.warmup))
        return self.lr * rise * (1 - (1 - self.decay) * fall)

    def entropy_at(self, update: int, total: int) -> float:
        """Entropy coefficient of update 0, 1, .. `total` - 1."""
        if self.entropy_final is None:
            return self.entropy
        return self.entropy + (self.entropy_final - self.entropy) * min(1.0, update / max(1, total - 1))
