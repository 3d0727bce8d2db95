"""The whole method in one file: an agent learns, during play, to beat opponents it never met.

The game is rock-paper-scissors, three throws an episode. Every opponent is new: its throw
probabilities are drawn from Dirichlet(.5, .5, .5). A META-EPISODE is three episodes against ONE
opponent, with a memory between them. Training rewards whole meta-episodes (MAGE, arXiv 2603.03680),
so the policy learns to use its memory. Its weights do not change during play.

    python examples/minimal.py            # 15 seconds on one free core
    python examples/minimal.py --seed 2

Read from top to bottom: game, policy, play, credit, loss, training, exact bounds. `mage/` does the
same for language models. Left out here, and why:

- Language: the policy is a small network, so there are no prompts, tokens or illegal replies.
- Reflections: they are text. The memory holds the opponent's past throws (`keep = "history"`).
- The KL term: it keeps a language model near its start. This policy starts from nothing.
- Everything around the method: recipes, run folders, resume, several GPUs, evaluation panels.

`tests/test_minimal.py` compares the returns, the advantages and the loss with those of the package.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch.nn.functional import one_hot

EPISODES, THROWS = 3, 3
ALPHA = 0.5  # of the Dirichlet distribution: most opponents have a favourite throw
GROUPS, MEMBERS = 128, 8  # an update plays 128 opponents, each of them 8 times
UPDATES, MINIBATCHES, LEARNING_RATE = 80, 8, 3e-3
STEP_DISCOUNT, EPISODE_DISCOUNT = 0.95, 0.6  # inside an episode, from episode to episode
CLIP, DUAL_CLIP = 0.2, 3.0
ENTROPY_FIRST, ENTROPY_LAST = 0.1, 0.0  # weight of the entropy bonus, changed linearly

# ---- The game. Throws: 0 rock, 1 paper, 2 scissors. Throw x beats x - 1 (modulo 3).

NOTHING = 3  # in place of a throw that is not known


def points(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """+1 for a throw won, 0 for equal throws, -1 for a throw lost."""
    return torch.tensor([0.0, 1.0, -1.0])[(own - other) % 3]


def new_opponents(count: int) -> torch.Tensor:
    """Throw probabilities of opponents that nobody has met, [count, 3]."""
    return torch.distributions.Dirichlet(torch.full((3,), ALPHA)).sample((count,))


# ---- The policy: pi(a | memory M_n, throws of this episode).


class Policy(torch.nn.Module):
    """Reads the opponent's throws: six places of memory, then three places of this episode."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        places = EPISODES * THROWS
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(places * 4, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
        )

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Logprobs of the three throws, [rows, 3], from what was seen, [rows, 9]."""
        logits: torch.Tensor = self.layers(one_hot(seen, 4).float().flatten(1))
        return logits.log_softmax(-1)


# ---- Play: meta-episodes with a memory between their episodes.


@dataclass(frozen=True)
class Played:
    """Meta-episodes of some groups. Members 0 to G - 1 of group 0 come first, then group 1."""

    seen: torch.Tensor  # [metas, episodes, throws, 9]
    throws: torch.Tensor  # [metas, episodes, throws]
    logprobs: torch.Tensor  # of the throws when they were sampled
    points: torch.Tensor  # after each throw


@torch.no_grad()
def play(policy: Policy, opponents: torch.Tensor, members: int, use_memory: bool = True) -> Played:
    """Play every opponent `members` times: these meta-episodes are a group.

    An opponent makes the same throws against all members. Differences inside a group then come
    from the agent alone.
    """
    others = torch.multinomial(opponents, EPISODES * THROWS, replacement=True)
    others = others.view(-1, EPISODES, THROWS).repeat_interleave(members, 0)
    memory = torch.full((len(others), (EPISODES - 1) * THROWS), NOTHING)
    turns = []
    for n in range(EPISODES):
        history = torch.full((len(others), THROWS), NOTHING)
        for t in range(THROWS):
            seen = torch.cat([memory, history], dim=1)
            logprobs = policy(seen)
            throw = torch.multinomial(logprobs.exp(), 1)
            logprob = logprobs.gather(1, throw).squeeze(1)
            throw, other = throw.squeeze(1), others[:, n, t]
            turns.append((seen, throw, logprob, points(throw, other)))
            history[:, t] = other  # both throws are shown after the decision
        if use_memory and n + 1 < EPISODES:
            memory[:, n * THROWS : (n + 1) * THROWS] = history
    columns = (torch.stack(column, dim=1) for column in zip(*turns, strict=True))
    return Played(*(column.unflatten(1, (EPISODES, THROWS)) for column in columns))


# ---- Credit, first half: returns.


def compute_returns(rewards: list[float], lengths: list[int]) -> list[list[float]]:
    """G_{n,t} of every turn of a meta-episode (MAGE eq. 5-7). Episode n has `lengths[n]` turns.

    The reward of an episode is its IMPROVEMENT, r_n = R_n - R_{n-1} with R_0 = 0, at its last turn:

        G_{n,t} = g_step^(T_n - t) (r_n + g_traj G_{n+1,1})

    So a throw of episode 1 is credited with what its episode earned and, discounted, with how much
    better the next episodes were. For g_step = 1 and g_traj = .6, G_{1,1} weighs R_1, R_2, R_3 with
    .40, .24, .36.
    """
    returns: list[list[float]] = []
    later = 0.0  # g_traj G_{n+1,1}
    for n in reversed(range(len(rewards))):
        improvement = rewards[n] - (rewards[n - 1] if n > 0 else 0.0)
        last = improvement + later
        returns.insert(0, [STEP_DISCOUNT ** (lengths[n] - 1 - t) * last for t in range(lengths[n])])
        later = EPISODE_DISCOUNT * returns[0][0]
    return returns


# ---- Credit, second half: advantages. All comparisons are inside a group (the same opponent).


@dataclass(frozen=True)
class Turn:
    """The return of one turn, and what it is compared with."""

    member: int
    episode: int
    anchor: Hashable  # the plain state, without memory
    value: float  # G_{n,t}
    first: float  # G_{n,1}


def compute_advantages(group: list[Turn]) -> list[float]:
    """A = A_episode + A_step for the turns of a group (GiGPO, arXiv 2505.10978).

    A_episode compares G_{n,1} with the same episode of the other members. A_step compares G_{n,t}
    with turns of the other members that have the same anchor, in ANY episode (MAGE's global
    anchor). Returns of different episodes have different levels, so each episode is centred first.
    """
    level = {}
    for n in {turn.episode for turn in group}:
        level[n] = fmean({turn.member: turn.first for turn in group if turn.episode == n}.values())
    by_episode = compare([(turn.episode, turn.member, turn.first) for turn in group])
    by_anchor = compare([(t.anchor, t.member, t.value - level[t.episode]) for t in group])
    return [episode + step for episode, step in zip(by_episode, by_anchor, strict=True)]


def compare(rows: list[tuple[Hashable, int, float]]) -> list[float]:
    """Each value minus the mean of the OTHER members at the same key; 0 if there is no other.

    Rows are (key, member, value). A member counts once, with the mean of its values, however many
    turns it had. Leaving the own member out keeps the gradient unbiased (RLOO, arXiv 2402.14740).
    """
    values: dict[Hashable, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, member, value in rows:
        values[key][member].append(value)
    means = {key: {m: fmean(own) for m, own in members.items()} for key, members in values.items()}
    totals = {key: sum(members.values()) for key, members in means.items()}
    compared = []
    for key, member, value in rows:
        others = len(means[key]) - 1
        baseline = (totals[key] - means[key][member]) / others if others else value
        compared.append(value - baseline)
    return compared


def assign_credit(played: Played) -> torch.Tensor:
    """The advantages of all turns, [metas, episodes, throws]. The anchor is the throw's number."""
    advantages = []
    for group in played.points.sum(-1).split(MEMBERS):  # R_n: the points of an episode
        turns = [
            Turn(member, n, t, value, own[0])
            for member, rewards in enumerate(group.tolist())
            for n, own in enumerate(compute_returns(rewards, [THROWS] * EPISODES))
            for t, value in enumerate(own)
        ]
        advantages += compute_advantages(turns)
    return torch.tensor(advantages).view_as(played.points)


# ---- The loss.


def policy_objective(ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """PPO's clipped objective (arXiv 1707.06347, eq. 7) with a dual clip (arXiv 1912.09729, eq. 5).

    The dual clip bounds what one throw can do if its advantage is negative and its ratio is large.
    """
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP) * advantages
    objective = torch.minimum(ratio * advantages, clipped)
    return torch.where(advantages < 0, objective.maximum(DUAL_CLIP * advantages), objective)


def learn(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    played: Played,
    advantages: torch.Tensor,
    bonus: float,
) -> None:
    """One epoch over the turns of an update. The loss is a mean over turns.

    The entropy bonus keeps the policy exploring. This game can do without it: the opponent's throw
    is shown whatever the agent does. In poker a policy without it stops at the best policy
    that does not adapt.
    """
    seen, throws = played.seen.flatten(0, 2), played.throws.flatten()
    old, advantages = played.logprobs.flatten(), advantages.flatten()
    for rows in torch.randperm(len(throws)).chunk(MINIBATCHES):
        logprobs = policy(seen[rows])
        new = logprobs.gather(1, throws[rows, None]).squeeze(1)
        objective = policy_objective((new - old[rows]).exp(), advantages[rows])
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        loss = -(objective + bonus * entropy).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


# ---- Training: play, credit, learn.


def train(updates: int = UPDATES) -> Policy:
    """A policy after some updates. Every update meets new opponents."""
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    for update in range(updates):
        bonus = ENTROPY_FIRST + (ENTROPY_LAST - ENTROPY_FIRST) * update / updates
        played = play(policy, new_opponents(GROUPS), MEMBERS)
        advantages = assign_credit(played)
        learn(policy, optimizer, played, advantages, bonus)
        if (update + 1) % 20 == 0:
            print(f"update {update + 1:3}, score a throw by episode: {show(scores(played))}")
    return policy


def scores(played: Played) -> list[float]:
    """Mean points a throw, by episode."""
    return played.points.mean(dim=(0, 2)).tolist()


# ---- Exact bounds, and the table.


def best_learner() -> list[float]:
    """The highest expected score a throw that any learner can have, by episode.

    The opponent does not react, so the best learner maximises the expected points of each throw.
    If it has seen k throws with counts c, the next is x with probability (c_x + alpha) /
    (k + 3 alpha). Without memory only the throws of this episode count: episode 1 at most.
    """
    expected = []
    reached: dict[tuple[int, ...], float] = {(0, 0, 0): 1.0}  # probability of each table of counts
    for known in range(EPISODES * THROWS):
        best = 0.0
        following: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, probability in reached.items():
            chance = [(count + ALPHA) / (known + 3 * ALPHA) for count in counts]
            best += probability * max(chance[own - 1] - chance[(own + 1) % 3] for own in range(3))
            for x in range(3):
                more = tuple(count + (x == other) for other, count in enumerate(counts))
                following[more] += probability * chance[x]
        expected.append(best)
        reached = following
    return [fmean(expected[n * THROWS : (n + 1) * THROWS]) for n in range(EPISODES)]


def show(values: list[float]) -> str:
    return "   ".join(f"{value:6.3f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    torch.manual_seed(parser.parse_args().seed)
    torch.set_num_threads(1)
    started = time.perf_counter()
    policy = train()
    print(f"trained in {time.perf_counter() - started:.0f} seconds\n")
    opponents = new_opponents(20_000)
    best = best_learner()
    print("score a throw against 20,000 new opponents, by episode")
    print(f"untrained              {show(scores(play(Policy(), opponents, 1)))}")
    print(f"trained                {show(scores(play(policy, opponents, 1)))}")
    print(f"memory emptied         {show(scores(play(policy, opponents, 1, use_memory=False)))}")
    print(f"best without memory    {show([best[0]] * EPISODES)}")
    print(f"best learner           {show(best)}")


if __name__ == "__main__":
    main()
