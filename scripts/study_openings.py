"""Study: which entropy bonus and discount make a learner of Tic-Tac-Toe open in the corner?

Against MCTS-100 a corner wins about twice as often as the centre with best play (`--values`). For
a player that does not know the forks yet, the centre is safer. The study trains a table of move
weights by policy gradient, in minutes on a CPU. It follows the recipe `smollm2_tic_tac_toe`: its
opponents, both seats, groups of 8 meta-episodes of three games, GiGPO's two comparisons, win +10,
loss -10. It prints wins, draws and openings against MCTS-100 in the first seat. The return of a
game adds later games with weight `discount` to the power of their distance.

    python scripts/study_openings.py --values --try 2 0.2 0.3 --try 4 0.3 0.3
"""

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mage.config.loading import load_recipe
from mage.environments.tic_tac_toe import TicTacToe, TicTacToeState
from mage.evaluation.ceilings import opening_values
from mage.opponents.base import find

WORLD, RIVAL, REWARD = TicTacToe(), "mcts-100", 10
EPISODES, EVERY = 3, 50
_POLICIES: dict[tuple[str, str], Mapping[str, float]] = {}
Decision = tuple[str, int, np.ndarray]  # the board, the move's number, the chances of all moves
Game = tuple[list[Decision], str, float]  # the agent's decisions, its opening, its reward


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of one run."""

    entropy: float
    entropy_final: float
    discount: float
    updates: int
    lr: float
    groups: int
    members: int


def answer(state: TicTacToeState, opponent: str, seat: int, rng: random.Random) -> str:
    """The opponent's move; the policy of a search is estimated once a position."""
    key = opponent, state.anchor(seat)
    if key not in _POLICIES:
        _POLICIES[key] = find(opponent).policy(state, seat)
    moves = _POLICIES[key]
    return rng.choices(list(moves), list(moves.values()))[0]


def play(table: dict[str, np.ndarray], opponent: str, seat: int, rng: random.Random) -> Game:
    state, made, opening = WORLD.start(0), list[Decision](), ""
    while (mover := state.turn()) is not None:
        if mover != seat:
            state.apply(answer(state, opponent, mover, rng))
            continue
        legal, board = state.legal(), state.anchor(seat)
        weights = table.setdefault(board, np.zeros(len(legal)))
        chances = np.exp(weights - weights.max())
        chances /= chances.sum()
        choice = rng.choices(range(len(legal)), chances)[0]
        made.append((board, choice, chances))
        opening = opening or legal[choice]
        state.apply(legal[choice])
    return made, opening, REWARD * state.scores()[seat]


def add_slopes(
    slopes: dict[str, np.ndarray], group: list[list[Game]], entropy: float, discount: float
) -> None:
    """Add a group's policy gradient: each episode and each board against the group's mean."""
    follows = np.array(
        [
            [
                sum(discount ** (later - k) * games[later][2] for later in range(k, EPISODES))
                for k in range(EPISODES)
            ]
            for games in group
        ]
    )
    follows -= follows.mean(0)
    moves = [
        (follows[member, k], *decision)
        for member, games in enumerate(group)
        for k, (made, _, _) in enumerate(games)
        for decision in made
    ]
    met: dict[str, list[float]] = defaultdict(list)
    for value, board, _, _ in moves:
        met[board].append(float(value))
    for value, board, choice, chances in moves:
        towards = -1.0 * chances
        towards[choice] += 1
        logs = np.log(chances + 1e-12)
        spread = -chances * (logs - (chances * logs).sum())
        slopes[board] = (
            slopes.get(board, 0) + (2 * value - np.mean(met[board])) * towards + entropy * spread
        )


def study(setting: Setting, seed: int = 0) -> None:
    rng, table = random.Random(seed), dict[str, np.ndarray]()
    pool = load_recipe("smollm2_tic_tac_toe").population().pool("train")
    results, openings = Counter[float](), Counter[str]()
    for update in range(1, setting.updates + 1):
        entropy = (
            setting.entropy + (setting.entropy_final - setting.entropy) * update / setting.updates
        )
        slopes: dict[str, np.ndarray] = {}
        for _ in range(setting.groups):
            opponent, seat = rng.choices(list(pool), list(pool.values()))[0], rng.randrange(2)
            group = [
                [play(table, opponent, seat, rng) for _ in range(EPISODES)]
                for _ in range(setting.members)
            ]
            add_slopes(slopes, group, entropy, setting.discount)
            if (opponent, seat) == (RIVAL, 0):
                results.update(reward for games in group for _, _, reward in games)
                openings.update(opening for games in group for _, opening, _ in games)
        for board, slope in slopes.items():
            table[board] += setting.lr * np.clip(slope, -25, 25)
        if update % EVERY == 0:
            count = max(1, sum(results.values()))
            shares = ", ".join(
                f"{cell} {times / count:.0%}" for cell, times in openings.most_common(3)
            )
            wins, draws = results[REWARD] / count, results[0] / count
            print(
                f"  updates {update - EVERY + 1:3} to {update:3}: {RIVAL} beaten {wins:.2f}, "
                f"drawn {draws:.2f}; openings {shares}",
                flush=True,
            )
            results.clear()
            openings.clear()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help="first print the value of every opening with best play",
    )
    parser.add_argument(
        "--try",
        nargs=3,
        type=float,
        action="append",
        dest="tries",
        metavar=("ENTROPY", "FINAL", "DISCOUNT"),
        help="may be given more than once",
    )
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument(
        "--lr",
        type=float,
        default=0.012,
        help="0.012 learns about as fast an update as SmolLM2 did",
    )
    given = parser.parse_args()
    if given.values:
        worth = opening_values(WORLD, RIVAL, "win")
        print(
            "chance to win with best play after opening "
            + ", ".join(f"{cell}: {value:.3f}" for cell, value in worth.items()),
            flush=True,
        )
    for entropy, final, discount in given.tries or [(2.0, 0.2, 0.3), (4.0, 0.3, 0.3)]:
        print(f"entropy {entropy} -> {final}, later games count {discount}", flush=True)
        study(
            Setting(entropy, final, discount, given.updates, given.lr, given.groups, given.members)
        )


if __name__ == "__main__":
    main()
