"""Make the fifth embedded model: a tiny Llama for Kuhn poker against players it has never met.

It is trained on scripted play through the real prompts: uniformly random moves against random
players. So it knows the words and the answer format. How to play, and what the record of earlier
hands says about an opponent, comes from reinforcement learning alone.

    python scripts/make_embedded_kuhn.py --out mage/models/shipped/embedded-kuhn

The shipped model was made with the default options on one thread (45 s of computing). Its last loss
was .2307; uniformly random moves in the right format have ln(2) / 3 = .2310. Replies that are not
legal moves have probability .0005. With a third of the steps it was .01, and training broke the
format.
"""

from itertools import product

from random_play import Defaults, Game, make

from mage.agent.agent import Agent, SamplingOptions, system_text
from mage.agent.chat import Chat
from mage.engines.base import ScriptedEngine
from mage.environments.kuhn_poker import CARDS, KuhnPoker
from mage.memory.notes import Notes
from mage.play import PlaySetup

WORLD = KuhnPoker()
# The moves of a hand as each seat reads them, and whether they end with a showdown.
OPEN = (
    "none",
    "opponent pass",
    "opponent bet",
    "you pass, opponent bet",
)
FOLDED = (
    "you pass, opponent bet, you pass",
    "you bet, opponent pass",
    "opponent pass, you bet, opponent pass",
    "opponent bet, you pass",
)
SHOWN = (
    "you pass, opponent pass",
    "you pass, opponent bet, you bet",
    "you bet, opponent bet",
    "opponent pass, you pass",
    "opponent pass, you bet, opponent bet",
    "opponent bet, you bet",
)
# One token for each observation and for each piece of evidence about the opponent. The card of the
# present hand and the card of an earlier hand are different tokens.
PHRASES = (
    *system_text(WORLD).split("\n"),
    *(f"{WORLD.instance(seat)}\n" for seat in range(2)),
    "Game 1 of 1. ",
    *(f"Game {game} of 3. " for game in range(1, 4)),
    *(f"Your card: {card}. Moves: {moves}." for card, moves in product(CARDS, OPEN)),
    *(f"Game {game}: " for game in range(1, 4)),
    *(f"Your card: {card}. " for card in CARDS),
    *(f"Moves: {moves}. Opponent's card: hidden. " for moves in FOLDED),
    *(f"Moves: {moves}. Opponent's card: {card}. " for moves, card in product(SHOWN, CARDS)),
    *(f"You {result} {chips}.\n" for result in ("won", "lost") for chips in ("1 chip", "2 chips")),
)


def play_setup(engine: ScriptedEngine, chat: Chat) -> PlaySetup:
    """Three hands with the record of the earlier ones."""
    agent = Agent(engine, chat, SamplingOptions())
    return PlaySetup(WORLD, agent, Notes(keep="history"), episodes=3)


if __name__ == "__main__":
    game = Game(("pass", "bet"), PHRASES, play_setup, texts=100)
    make(__doc__.splitlines()[0], game, Defaults(steps=600, batch=16, count=6000, layers=2))
