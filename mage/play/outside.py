"""A meta-episode whose agent is outside of MAGE: another trainer, a script or a person.

The other seat is one of MAGE's opponents. After each episode the agent is told the recap and the
opening of the next one, so whoever keeps the conversation keeps the memory.
"""

from mage.agent.agent import episode_text, illegal_text, read_action
from mage.config.errors import UserError
from mage.environments.base import Environment, State
from mage.opponents.base import Opponent, find, meet, move_rng
from mage.play.episode import apply_move, check_seat, final_score, find_ending, recap_text
from mage.types import Ending, Split, Task


class OutsidePlay:
    """One meta-episode of a task of `split`. `scores` are those of the finished episodes."""

    def __init__(
        self,
        environment: Environment,
        opponent: str,
        seat: int,
        episodes: int,
        seed: int,
        split: Split = "train",
    ) -> None:
        self.environment, self.episodes = environment.for_split(split), episodes
        self.task = Task(environment.name, seed, seat, opponent, split)
        self.opponent: Opponent | None = meet(self.task) if environment.multi_agent else None
        self.scores: list[float] = []
        self.moves = self.turns = self.illegal = 0
        self.state: State
        self.shown: str
        self._start_episodes([])

    @property
    def over(self) -> bool:
        """Whether all episodes are finished."""
        return len(self.scores) == self.episodes

    def legal(self) -> tuple[str, ...]:
        """The legal moves of the agent; none at the end."""
        return () if self.over else self.state.legal()

    def reply(self, text: str) -> float:
        """Take a reply of the agent: a move, plain or between action tags. Returns what it scored.

        An illegal reply costs a turn. `shown` is what the agent sees next. The score of a next
        episode that ends before the agent moves counts too.
        """
        assert not self.over, "all episodes are finished"
        written = read_action(text) or text.strip()
        action = self.state.read(written) if written else None
        self.turns += 1
        if action is None:
            self.illegal += 1
            self.state.refuse(written)
        else:
            self.state.apply(action)
            self.moves += 1
            self._let_opponent_move()
        ending = find_ending(self.environment, self.state, self.turns, not self.illegal)
        if ending is not None:
            before = len(self.scores)
            self._start_episodes([self._finish(ending)])
            return sum(self.scores[before:])
        seen = self.state.observe(self.task.seat)
        self.shown = illegal_text(seen) if action is None else seen
        return 0.0

    def total(self) -> float:
        """The sum of all scores; an episode that was not finished counts as forfeited."""
        return sum(self.scores) + self.environment.forfeit_score * (
            self.episodes - len(self.scores)
        )

    def _start_episodes(self, told: list[str]) -> None:
        """Start the next episode, and another one if it ends before the agent moves.

        `told` are the recaps that the agent has not seen.
        """
        seat, world = self.task.seat, self.environment
        while not self.over:
            number = len(self.scores)
            self.moves = self.turns = self.illegal = 0
            self.state = world.start(world.episode_seed(self.task.seed, number))
            self._let_opponent_move()
            if self.state.turn() is not None:
                seen = self.state.observe(seat)
                told.append(episode_text(world, seat, "", number + 1, self.episodes, seen))
                break
            told.append(self._finish("finished"))
        self.shown = "\n".join(told)

    def _let_opponent_move(self) -> None:
        while (mover := self.state.turn()) is not None and mover != self.task.seat:
            check_seat(self.environment, self.state, mover)
            assert self.opponent is not None, "a world with one agent has one seat"
            rng = move_rng(self.task, self.environment, len(self.scores), self.moves)
            move = self.opponent.act(self.state, mover, rng)
            apply_move(self.state, move, self.opponent)
            self.moves += 1

    def _finish(self, ending: Ending) -> str:
        """Score the episode by the rules of play; its recap."""
        seat, world = self.task.seat, self.environment
        self.scores.append(final_score(world, self.state, seat, ending))
        return recap_text(world, self.state, seat, ending)


def check_opponent(environment: Environment, opponent: str) -> None:
    """Raise an error unless this opponent can play here without a training run."""
    if not environment.multi_agent:
        if opponent:
            raise UserError(f"{environment.name} has no opponents: leave out {opponent}")
        return
    if not opponent:
        raise UserError(f"{environment.name} needs an opponent, for example opponent='random'")
    player = find(opponent)
    if player.has_weights or not player.plays(environment):
        raise UserError(f"{opponent} does not play {environment.name} outside of MAGE's own play")
