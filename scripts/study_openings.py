"""How much entropy a learner of Tic-Tac-Toe needs to find the corner: a tabular policy gradient against MCTS-100, first seat, in minutes on a CPU.

A corner wins .65 of the games against MCTS-100 with best play, the centre .33; but for whoever does not know the forks yet, the centre
is safer. `python scripts/study_openings.py --entropy 1 0.2 --entropy 3 0.3` trains a table of move weights by REINFORCE with group baselines (win
+10, loss -10) and shows wins, draws and openings on the way. It stands in for a language model's training where that would take a GPU.
"""

import argparse
import random
from collections import Counter
from functools import cache

import numpy as np
import pyspiel

GAME = pyspiel.load_game("tic_tac_toe")
SEARCHES, GROUPS, GAMES = 60, 16, 24
EVERY = 50


@cache
def mcts_100(board: str, moves: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """MCTS-100's moves in a position and how often it makes them, over seeded searches."""
    state = play(moves)
    found = Counter(pyspiel.MCTSBot(GAME, pyspiel.RandomRolloutEvaluator(1, seed), 1.4, 100, 1000, True, seed, False).step(state) for seed in range(SEARCHES))
    return tuple(found), tuple(count / SEARCHES for count in found.values())


def play(moves: tuple[int, ...]) -> pyspiel.State:
    state = GAME.new_initial_state()
    for move in moves:
        state.apply_action(move)
    return state


_KNOWN: dict[str, tuple[int, ...]] = {}


def answer(state: pyspiel.State, rng: random.Random) -> int:
    """The search's move; positions reached by several orders of moves are searched once."""
    board = str(state)
    moves, chances = mcts_100(board, _KNOWN.setdefault(board, tuple(state.history())))
    return rng.choices(moves, chances)[0]


def episode(table: dict[str, np.ndarray], searched: bool, rng: random.Random) -> tuple[list[tuple[str, int, np.ndarray]], float]:
    """One game against MCTS-100 or a random player: the agent's decisions, and its score."""
    state, made = GAME.new_initial_state(), []
    while not state.is_terminal():
        legal = state.legal_actions()
        if state.current_player() == 1:
            state.apply_action(answer(state, rng) if searched else rng.choice(legal))
            continue
        weights = table.setdefault(str(state), np.zeros(len(legal)))
        chances = np.exp(weights - weights.max())
        chances /= chances.sum()
        choice = rng.choices(range(len(legal)), chances)[0]
        made.append((str(state), choice, chances))
        state.apply_action(legal[choice])
    return made, state.returns()[0]


def study(start: float, end: float, updates: int, lr: float, seed: int = 0) -> None:
    rng, table = random.Random(seed), dict[str, np.ndarray]()
    for update in range(1, updates + 1):
        entropy = start + (end - start) * update / updates
        slopes: dict[str, np.ndarray] = {}
        results, openings = Counter[float](), Counter[int]()
        for _ in range(GROUPS):
            searched = rng.random() < 0.6
            games = [episode(table, searched, rng) for _ in range(GAMES)]
            baseline = 10 * sum(score for _, score in games) / GAMES
            for made, score in games:
                if searched:
                    results[score] += 1
                    openings[made[0][1] + 1] += 1
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entropy", nargs=2, type=float, action="append", metavar=("START", "END"), help="weight of the entropy; may be given more than once")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.006, help="0.006 learns about as fast an update as SmolLM2 did")
    given = parser.parse_args()
    for first, last in given.entropy or [(1.0, 0.2), (3.0, 0.3)]:
        print(f"entropy {first} -> {last}")
        study(first, last, given.updates, given.lr)
