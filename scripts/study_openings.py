"""How much entropy a learner of Tic-Tac-Toe needs to find the corner: a tabular policy gradient against MCTS-100, first seat, in minutes on a CPU.

Against MCTS-100 a corner wins about twice as often as the centre with best play (`--values`); but for whoever does not know the
forks yet the centre is safer. The study trains a table of move weights by REINFORCE with group baselines (win +10, loss -10) and shows wins, draws
and openings on the way. It stands in for a language model's training where that would take a GPU.

    python scripts/study_openings.py --values --entropy 1 0.2 --entropy 3 0.3
"""

import argparse
import random
from collections import Counter
from collections.abc import Mapping

import numpy as np

from mage.ceilings import opening_values
from mage.environments.tic_tac_toe import TicTacToe, TicTacToeState
from mage.opponents.base import find

WORLD, RIVAL = TicTacToe(), "mcts-100"
GROUPS, GAMES, SEARCHED = 16, 24, 0.6  # groups an update, games of a group, share of groups against the search (else a random player)
EVERY = 50
_POLICIES: dict[str, Mapping[str, float]] = {}


def answer(state: TicTacToeState, searched: bool, rng: random.Random) -> str:
    """The opponent's move; the policy of the search is estimated once a position."""
    if not searched:
        return rng.choice(state.legal())
    board = state.anchor(1)
    if board not in _POLICIES:
        _POLICIES[board] = find(RIVAL).policy(state, 1)
    moves = _POLICIES[board]
    return rng.choices(list(moves), list(moves.values()))[0]


def episode(table: dict[str, np.ndarray], searched: bool, rng: random.Random) -> tuple[list[tuple[str, int, np.ndarray]], str, float]:
    """One game: the agent's decisions, its opening and its score."""
    state, made, opening = WORLD.start(0), [], ""
    while (seat := state.turn()) is not None:
        if seat == 1:
            state.apply(answer(state, searched, rng))
            continue
        legal, board = state.legal(), state.anchor(0)
        weights = table.setdefault(board, np.zeros(len(legal)))
        chances = np.exp(weights - weights.max())
        chances /= chances.sum()
        choice = rng.choices(range(len(legal)), chances)[0]
        made.append((board, choice, chances))
        opening = opening or legal[choice]
        state.apply(legal[choice])
    return made, opening, state.scores()[0]


def study(start: float, end: float, updates: int, lr: float, seed: int = 0) -> None:
    rng, table = random.Random(seed), dict[str, np.ndarray]()
    for update in range(1, updates + 1):
        entropy = start + (end - start) * update / updates
        slopes: dict[str, np.ndarray] = {}
        results, openings = Counter[float](), Counter[str]()
        for _ in range(GROUPS):
            searched = rng.random() < SEARCHED
            games = [episode(table, searched, rng) for _ in range(GAMES)]
            baseline = 10 * sum(score for _, _, score in games) / GAMES
            for made, opening, score in games:
                if searched:
                    results[score] += 1
                    openings[opening] += 1
                for board, choice, chances in made:
                    towards = -chances.copy()
                    towards[choice] += 1
                    logs = np.log(chances + 1e-12)
                    spread = -chances * (logs - (chances * logs).sum())
                    slopes[board] = slopes.get(board, 0) + (10 * score - baseline) * towards + entropy * spread
        for board, slope in slopes.items():
            table[board] += lr * np.clip(slope, -25, 25)
        if update % EVERY == 0:
            count = max(1, sum(results.values()))
            told = ", ".join(f"{cell} {times / count:.0%}" for cell, times in openings.most_common(3))
            print(f"  update {update:4}: MCTS-100 beaten {results[1.0] / count:.2f}, drawn {results[0.0] / count:.2f}; openings {told}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", action="store_true", help="first show what every opening is worth with best play")
    parser.add_argument("--entropy", nargs=2, type=float, action="append", metavar=("START", "END"), help="weight of the entropy; may be given more than once")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.006, help="0.006 learns about as fast an update as SmolLM2 did")
    given = parser.parse_args()
    if given.values:
        worth = opening_values(WORLD, RIVAL, "win")
        print("chance to win with best play after opening " + ", ".join(f"{cell}: {value:.3f}" for cell, value in worth.items()), flush=True)
    for first, last in given.entropy or [(1.0, 0.2), (3.0, 0.3)]:
        print(f"entropy {first} -> {last}")
        study(first, last, given.updates, given.lr)
