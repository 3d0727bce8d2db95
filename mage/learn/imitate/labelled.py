"""Play of the model itself, in which every turn is labelled with the expert's move."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from mage.agent.agent import Sampler
from mage.agent.chat import Ids
from mage.learn.imitate.demonstrations import Demonstration, RecordingPlayer, next_of_win, play_all
from mage.play import PlaySetup
from mage.types import Completion, MetaEpisode, Request, Task


def label_play(
    setup: PlaySetup,
    tasks: Sequence[Task],
    seed: int,
    *,
    repeat_wins: bool = False,
    after_loss: bool = False,
) -> list[Demonstration]:
    """The model plays one meta-episode per task; every turn is labelled with the expert's move.

    So the taught situations, and the failures in the memory, are those of the model itself (DAgger,
    Ross et al. 2011). Turns without an expert's move are left out, and so are notes. With
    `repeat_wins` the label after a won episode is the next move of that episode. With `after_loss`
    only tasks whose first episode was not won are labelled, from the second episode on.
    """
    players = [LabelledPlayer(setup, task, repeat_wins=repeat_wins) for task in tasks]
    played = play_all(players, seed, setup.agent.engine.capacity)
    return [
        demonstration
        for player, meta in played
        if not (after_loss and meta.episodes[0].outcome == "won")
        for demonstration in player.read(meta)
        if not (after_loss and demonstration.where.episode == 0)
    ]


class LabelledPlayer(RecordingPlayer):
    """The model as player of one meta-episode, with the expert's move for every request."""

    def __init__(self, setup: PlaySetup, task: Task, *, repeat_wins: bool = False) -> None:
        super().__init__(setup, task, _Observed(setup.agent.engine, self._label))
        self.repeat_wins = repeat_wins
        self.labels: dict[Ids, tuple[str | None, tuple[str, ...]]] = {}

    def _label(self, request: Request) -> None:
        """Keep the expert's move and the legal moves of the state."""
        if self.asks_for_move(request):
            state = self.states[-1]
            state.remember(self.states[:-1])
            expert = state.expert()
            label = None if expert is None else self.wording.word(expert)
            self.labels[request.prompt_ids] = (label, self.wording.words(state))

    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The labelled turns of the finished meta-episode."""
        wins: list[list[str]] = []
        for number, episode in enumerate(meta.episodes):
            made: list[str] = []
            for index, turn in enumerate(episode.turns):
                label, legal = self.labels[turn.prompt_ids]
                label = next_of_win(wins, made) or label
                made += [turn.action] if turn.legal and turn.action is not None else []
                if label is not None:
                    reply = self.chat.encode(f"{self.chat.thought_end}<action>{label}</action>")
                    where = meta.where(number, index)
                    yield Demonstration(replace(turn, choices=()), reply, legal, where)
            if self.repeat_wins and episode.outcome == "won":
                wins.append(made)


class _Observed:
    """A sampler that reports every request before it passes it on."""

    def __init__(self, inner: Sampler, report: Callable[[Request], None]) -> None:
        self.inner, self.report = inner, report
        self.policy_version, self.capacity = inner.policy_version, inner.capacity
        self.context = inner.context

    def refresh(self, policy_version: int) -> None:
        self.inner.refresh(policy_version)

    def release(self) -> None:
        self.inner.release()

    def sample(self, request: Request) -> Awaitable[Completion]:
        self.report(request)
        return self.inner.sample(request)
