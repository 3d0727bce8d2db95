"""A meta-episode whose agent is outside of MAGE: another trainer, a script or a person.

The other seat is one of MAGE's opponents. After each episode the agent is told the recap and the
opening of the next one, so whoever keeps the conversation keeps the memory.
"""

from mage.agent.agent import episode_text, illegal_text, read_action
from mage.config.errors import UserError
from mage.environments.base import Environment, State
from mage.opponents.base import Opponent, find, meet, move_rng
from mage.play.episode import final_score, recap_text
from mage.types import Ending, Task


class OutsidePlay:
    """One meta-episode. `scores` are those of the finished episodes."""

    def __init__(
        self, environment: Environment, opponent: str, seat: int, episodes: int, seed: int
    ) -> None:
        self.environment, self.episodes = environment, episodes
        self.task = Task(environment.name, seed, seat, opponent, "train")
        self.opponent: Opponent | None = meet(self.task) if environment.multi_agent else None
        self.scores: list[float] = []
        self.moves = self.turns = self.illegal = 0
        self.state: State
        self.shown = self._begin()

    @property
    def over(self) -> bool:
        """Whether all episodes are finished."""
        return len(self.scores) == self.episodes

    def legal(self) -> tuple[str, ...]:
        """The legal moves of the agent; none at the end."""
        return () if self.over else self.state.legal()

    def reply(self, text: str) -> float:
        """Take a reply of the agent: a move, plain or between action tags. Returns what it scored.

        An illegal reply costs a turn. `shown` is what the agent sees next.
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
        ending = self._ending()
        if ending is not None:
            return self._finish(ending)
        seen = self.state.observe(self.task.seat)
        self.shown = illegal_text(seen) if action is None else seen
        return 0.0

    def total(self) -> float:
        """The sum of all scores; an episode that was not finished counts as forfeited."""
        return sum(self.scores) + self.environment.forfeit_score * (
            self.episodes - len(self.scores)
        )

    def _begin(self) -> str:
        """Start the next episode; its opening text."""
        number = len(self.scores)
        self.moves = self.turns = self.illegal = 0
        self.state = self.environment.start(self.environment.episode_seed(self.task.seed, number))
        self._let_opponent_move()
        if self.state.turn() is None:
            self._finish("finished")
            return self.shown
        seen, seat = self.state.observe(self.task.seat), self.task.seat
        return episode_text(self.environment, seat, "", number + 1, self.episodes, seen)

    def _let_opponent_move(self) -> None:
        while (mover := self.state.turn()) is not None and mover != self.task.seat:
            assert self.opponent is not None, "a world with one agent has one seat"
            rng = move_rng(self.task, self.environment, len(self.scores), self.moves)
            self.state.apply(self.opponent.act(self.state, mover, rng))
            self.moves += 1

    def _ending(self) -> Ending | None:
        if self.state.turn() is None:
            return "finished"
        if self.turns < self.environment.max_turns:
            return None
        return "illegal" if self.illegal else "turn_limit"

    def _finish(self, ending: Ending) -> float:
        """Score the episode by the rules of play and begin the next one."""
        seat, world = self.task.seat, self.environment
        score = final_score(world, self.state, seat, ending)
        self.scores.append(score)
        recap = recap_text(world, self.state, seat, ending)
        self.shown = recap
        if not self.over:
            opening = self._begin()
            self.shown = f"{recap}\n{opening}"
        return score


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
