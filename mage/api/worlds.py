"""MAGE's worlds for other libraries: Gymnasium environments, and TRL's `environment_factory`.

Both play whole meta-episodes against MAGE's opponents. The packages are imported when used.
"""

from functools import cache, partial
from typing import Any, Literal

from mage.agent.agent import system_text
from mage.config.errors import UserError
from mage.config.options import make_item
from mage.environments.base import SEATS, Environment
from mage.play.outside import OutsidePlay, check_opponent
from mage.seeds import derive
from mage.types import Split

_LONGEST = 100_000  # characters of a text space


def make_world(environment: str | Environment, options: dict[str, Any]) -> Environment:
    """The environment with its options, checked."""
    if isinstance(environment, str):
        found = make_item("environments", environment, options)
    elif options:
        raise UserError("options have no effect on an environment that is made already")
    else:
        found = environment
    assert isinstance(found, Environment), "find_item checks the contract"
    found.check_data()
    return found


def as_gymnasium(
    environment: str | Environment,
    *,
    opponent: str = "",
    seat: Literal["first", "second"] = "first",
    episodes: int = 1,
    split: Split = "train",
    **options: Any,
) -> Any:
    """A world of MAGE as a `gymnasium.Env` with text as observations and actions.

    One episode of Gymnasium is a meta-episode of `episodes` episodes. The reward of a step is the
    score of the episode that it ended. `info["legal_moves"]` lists the moves. `split` chooses the
    tasks: train, or the held-out ones, test and ood.

    >>> env = as_gymnasium("kuhn_poker", opponent="conservative", episodes=3)
    >>> text, info = env.reset(seed=1)
    >>> info["legal_moves"]
    ['pass', 'bet']
    """
    world = make_world(environment, options)
    check_opponent(world, opponent)
    return _gymnasium_class()(world, opponent, SEATS.index(seat), episodes, split)


@cache
def _gymnasium_class() -> Any:
    """The class, made when it is first needed: its base class is in an optional package."""
    try:
        import gymnasium
    except ImportError:
        raise UserError(
            "gymnasium is not installed: pip install '.[gymnasium]' in the checkout of MAGE"
        ) from None

    class MageText(gymnasium.spaces.Space[str]):
        """Any text; a sample is a legal move of the running episode."""

        def __init__(self, world: "MageWorld") -> None:
            super().__init__((), str)
            self.world = world

        def contains(self, x: Any) -> bool:
            return isinstance(x, str) and len(x) <= _LONGEST

        def sample(self, mask: Any = None, probability: Any = None) -> str:
            play = self.world.play
            legal = play.legal() if play is not None else ()
            return str(self.np_random.choice(legal)) if legal else ""

    class MageWorld(gymnasium.Env[str, str]):
        """A meta-episode of a world of MAGE."""

        metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's form)
        render_mode = "ansi"

        def __init__(
            self, world: Environment, opponent: str, seat: int, episodes: int, split: Split
        ) -> None:
            self.start = partial(OutsidePlay, world, opponent, seat, episodes, split=split)
            self.play: OutsidePlay | None = None
            self.action_space = MageText(self)
            self.observation_space = MageText(self)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            self.play = self.start(seed=int(self.np_random.integers(2**31)))
            shown = f"{system_text(self.play.environment)}\n{self.play.shown}"
            return shown, self._info(self.play)

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            if self.play is None or self.play.over:
                raise UserError("the environment must be reset before this step")
            reward = self.play.reply(str(action))
            return self.play.shown, reward, self.play.over, False, self._info(self.play)

        def render(self) -> Any:
            return "" if self.play is None else self.play.shown

        def _info(self, play: OutsidePlay) -> dict[str, Any]:
            return {"legal_moves": list(play.legal()), "scores": list(play.scores)}

    return MageWorld


def as_trl(
    environment: str | Environment,
    *,
    opponent: str = "",
    seat: Literal["first", "second"] = "first",
    episodes: int = 1,
    split: Split = "train",
    **options: Any,
) -> Any:
    """A class for `GRPOTrainer(environment_factory=...)`: the model plays with the tool `move`.

    `rows(count)` of the class are the rows of a dataset, each with a seed: members of a group have
    one row, so they play one task. The reward is the sum of the scores of all episodes. `split`
    chooses the tasks, as in `as_gymnasium`.
    """
    world = make_world(environment, options)
    check_opponent(world, opponent)
    place = SEATS.index(seat)

    class MageWorld:
        """One rollout. TRL offers the public methods to the model as tools."""

        def reset(self, seed: int | None = None, **columns: Any) -> str:
            if seed is None:
                raise UserError(
                    "the dataset has no column `seed`: members of a group must play the same task; "
                    "make the dataset of the rows of this class, Dataset.from_list(World.rows(64))"
                )
            self._play = OutsidePlay(world, opponent, place, episodes, int(seed), split)
            return self._play.shown

        def move(self, action: str) -> str:
            """
            Make one move and see what happens.

            Args:
                action: The move, exactly as the rules name it.

            Returns:
                What you see next, or the end of the game.
            """
            if self._play.over:
                return "All games are over. Do not move any more."
            self._play.reply(str(action))
            return self._play.shown

        def get_reward(self) -> float:
            return self._play.total()

        @classmethod
        def rows(cls, count: int, seed: int = 0) -> list[dict[str, Any]]:
            """Rows of a dataset: the rules as the prompt, and one seed for each row."""
            rules = world.for_split(split).rules()
            prompt = [
                {"role": "system", "content": f"{rules} Make each move with the tool."},
                {"role": "user", "content": ""},
            ]
            seeds = [derive(seed, "trl", number) % 2**31 for number in range(count)]
            return [{"prompt": prompt, "seed": one} for one in seeds]

    return MageWorld
