"""Make the fourth embedded model: a tiny Llama for long games of rock-paper-scissors.

It is trained on scripted play through the real prompts, with the summary of predictors in every
observation: uniformly random throws against random players. So it knows the words and the answer
format. What to do with the summary comes from reinforcement learning alone.

    python scripts/make_embedded_roshambo.py --out mage/models/shipped/embedded-roshambo

The shipped model was made with the default options on one thread (20 s of computing). It has one
layer: a vote of the words needs no more, and an update costs a third. Its last loss was .378;
uniformly random throws in the right format have ln(3) / 3 = .366.
"""

from random_play import Defaults, Game, make

from mage.agent.agent import Agent, SamplingOptions, system_text
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.rock_paper_scissors import THROWS, RockPaperScissors
from mage.memory.notes import Notes
from mage.play import PlaySetup

WORLD = RockPaperScissors(throws=10, summary="predictors")
PHRASES = (
    *system_text(WORLD).split("\n"),
    f"{WORLD.instance(0)}\nGame 1 of 1. ",
    *(f"{own}-{other}. " for own in THROWS for other in THROWS),
    "Predictors:",
    " -",
    *(f" {throw}{digit}" for throw in THROWS for digit in range(7)),
)


def play_setup(engine: ScriptedEngine, chat: Chat) -> PlaySetup:
    """Games without memory; the agent sees the newest observation only."""
    agent = Agent(engine, chat, SamplingOptions(), window=0)
    return PlaySetup(WORLD, agent, Notes(keep="none"), episodes=1, numbered=False)


if __name__ == "__main__":
    game = Game(THROWS, PHRASES, play_setup, texts=8, spelled=r"\w+\d")
    make(__doc__.splitlines()[0], game, Defaults(steps=200, batch=2, count=200, layers=1))
