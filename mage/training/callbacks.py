"""Training callbacks. A callback observes a run and never changes its results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mage.evaluation.figures import Evaluation
from mage.run_folder import RunFolder

Metrics = dict[str, Any]  # one line of metrics.jsonl


class Callback:
    """Override the events you need. They are called on the main rank.

    Under torchrun `on_compile` and `on_tasks_played` are called on all ranks.
    """

    def on_start(self, folder: RunFolder, update: int) -> None:
        """The run starts, or resumes after `update` updates."""

    def on_update(
        self, update: int, total: int, metrics: Metrics, timing: Mapping[str, float]
    ) -> None:
        """An update is done; `metrics` and `timing` are its lines in the run folder."""

    def on_tasks_played(self, done: int, total: int, name: str) -> None:
        """`done` of the `total` tasks of the evaluation `name` are played."""

    def on_evaluation(self, name: str, update: int, evaluation: Evaluation) -> None:
        """The evaluation `name` of the weights after `update` updates is done."""

    def on_compile(self, line: str) -> None:
        """torch.compile starts to compile a part of the learner, which takes seconds."""

    def on_warmup(self, line: str) -> None:
        """Progress of the supervised warm-up."""

    def on_warning(self, line: str) -> None:
        """Something the user should know."""


class Forwarder(Callback):
    """Passes every event on."""

    def forward(self, event: str, *about: Any) -> None:
        """Call the method `event` of other callbacks."""
        raise NotImplementedError


def _passed_on(event: str) -> Callable[..., None]:
    return lambda self, *about: self.forward(event, *about)


for _event in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(Forwarder, _event, _passed_on(_event))


class CallbackList(Forwarder):
    """Passes every event to several callbacks, in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def forward(self, event: str, *about: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*about)
