"""All sections of a recipe, and what follows from their options.

The name of a menu folder is a section, a file in it is a value of `name`. The other keys are the
options of that item (fields of its class, keyword arguments of its function).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from mage.config import returned
from mage.config.errors import NOWHERE, ConfigError, did_you_mean, first_fault
from mage.config.menus import check_options, find_item, is_foreign, keeps_state, options_model
from mage.config.sections import (
    AgentOptions,
    Choice,
    EngineChoice,
    EstimatorChoice,
    EvaluateOptions,
    LearnOptions,
    MemoryChoice,
    ModelOptions,
    OpponentOptions,
    PlayOptions,
    ReturnOptions,
    RunOptions,
    Sampler,
    Seats,
    Section,
    Stage,
)
from mage.config.toml import show_value
from mage.config.warmup_options import WarmupOptions
from mage.types import Split


def make_item(section: str, name: str, options: Mapping[str, Any]) -> Any:
    """An item with its options. The class of the user may have changed since they were written."""
    kind = find_item(section, name)
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        option, fault, value = first_fault(error)
        if option in options and option not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            fault = f"{name} has no such option{did_you_mean(option, kind.model_fields)}: {known}"
        told = f"{section}.{option} = {show_value(value)}" if option else f"[{section}]"
        advice = f". If its code has changed, correct {returned.describe_class(kind)}"
        raise ConfigError(f"{told}: {fault}{advice if is_foreign(name) else ''}") from None


class Options(Section):
    """The whole tree of options; a `Recipe` is one whose sections fit together."""

    environments: Choice
    run: RunOptions = RunOptions()
    model: ModelOptions = ModelOptions()
    opponents: OpponentOptions = OpponentOptions()
    play: PlayOptions = PlayOptions()
    agent: AgentOptions = AgentOptions()
    # `memory()` returns the item itself.
    memory_choice: MemoryChoice = Field(MemoryChoice(), alias="memory")
    engines: EngineChoice = EngineChoice()
    returns: ReturnOptions = ReturnOptions()
    advantages: EstimatorChoice = EstimatorChoice()
    learn: LearnOptions = LearnOptions()
    evaluate: EvaluateOptions = EvaluateOptions()
    warmup: WarmupOptions = WarmupOptions()
    stages: tuple[Stage, ...] = Field((), strict=False)  # trained one after another

    @classmethod
    def sections(cls) -> dict[str, FieldInfo]:
        """The sections by the names of their fields."""
        return {name: field for name, field in cls.model_fields.items() if name != "stages"}

    def environment(self) -> Any:
        """The environment with its options."""
        return make_item("environments", self.environments.name, self.environments.options)

    def memory(self) -> Any:
        """The memory with its options."""
        return make_item("memory", self.memory_choice.name, self.memory_choice.options)

    def estimator(self, state: dict[str, float] | None = None) -> Callable[..., Any]:
        """`estimate(returns)` of the chosen file with its options filled in.

        `state` is what an estimator with running values has kept from earlier updates.
        """
        item, options = find_item("advantages", self.advantages.name), self.advantages.options
        if keeps_state(item):
            return partial(item, state={} if state is None else state, **options)
        return partial(item, **options)

    def engine(self) -> Callable[..., Any]:
        """The engine's class with its options, checked. Imports the engine and perhaps torch."""
        item = find_item("engines", self.engines.name)
        options = check_options(
            "engines", options_model(item.__init__, required=False), self.engines.options, NOWHERE
        )
        return partial(item, **options)

    def evaluation_seats(self, split: Split) -> Seats:
        """Seats of the agent in the evaluation of a split."""
        seats = self.evaluate.seats or self.play.seats
        return self.evaluate.ood_seats or seats if split == "ood" else seats

    def final_tasks(self, split: Split) -> int:
        """Tasks of the final panel of a split; 0 if the split has none."""
        return self.evaluate.final_size if split in self.evaluate.splits else 0

    def panel_size(self, panel: str) -> int:
        """Tasks of a panel."""
        return self.evaluate.final_size if panel == "final" else self.evaluate.size

    def plays_of(self, panel: str) -> int:
        """How often each task of a panel is played: once on a select panel."""
        return self.evaluate.plays if panel == "final" else 1

    def training_sampler(self) -> Sampler:
        """How replies are sampled in training: among all tokens, as the learner counts them."""
        return Sampler(self.agent.temperature, 1.0, 0)

    def evaluation_sampler(self) -> Sampler:
        """How replies are sampled in evaluation: as in training, unless [evaluate] says more."""
        own = self.evaluate
        temperature = self.agent.temperature if own.temperature is None else own.temperature
        return Sampler(temperature, own.top_p or 1.0, own.top_k or 0)

    def evaluation_episodes(self) -> int:
        """Episodes of a meta-episode in evaluation."""
        return self.evaluate.episodes or self.play.episodes
