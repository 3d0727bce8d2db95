"""[warmup]: supervised training on scripted play before reinforcement learning."""

from typing import Literal

from pydantic import Field

from mage.config.sections import Section


class WarmupOptions(Section):
    """[warmup]: the supervised stage of `mage warmup`. Training reads it only with `first`."""

    first: bool = Field(
        False, description="start training with the warm-up and keep its model in the run folder"
    )
    steps: int = Field(
        24, ge=0, le=100_000, description="optimizer steps; 0 = measure only, write no model"
    )
    play: Literal["random", "expert"] = Field(
        "random",
        description="scripted play: random = legal moves at random, teaches the format only; "
        "expert = moves of the environment's expert on training tasks",
    )
    noise: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of random moves in expert play; they are played but not taught",
    )
    repeat_wins: bool = Field(
        False,
        description="after a won episode of the same task, teach the moves of that episode "
        "instead of the expert's",
    )
    copies: float = Field(
        1.0,
        ge=0,
        le=1,
        description="with repeat_wins: share of the episodes after a won one that are taught",
    )
    own_steps: int = Field(
        0,
        ge=0,
        le=100_000,
        description="further optimizer steps, in which the model plays itself and the expert's "
        "move is taught in every situation (DAgger)",
    )
    own_labels: Literal["all", "after_loss"] = Field(
        "all",
        description="situations of own play that are taught: all, or only the later episodes of "
        "tasks whose first episode was not won (what to do after a failure)",
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="processes that write expert play while the model learns; the demonstrations "
        "do not depend on their number",
    )
    batch: int = Field(8, ge=1, description="scripted replies per step")
    lr: float = Field(
        1e-4,
        gt=0,
        le=1,
        description="learning rate of AdamW; it falls linearly to a tenth and is lower in the "
        "first steps",
    )
    turns: int = Field(
        64, ge=1, description="situations in which the model is tested before and after"
    )
