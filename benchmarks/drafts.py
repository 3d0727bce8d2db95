"""How many tokens of a reply could be drafted from the text before it?

    text   ... legal moves: go to desk 1, take mug 2 from desk 1 ... <action> take mug
    match  the last two tokens have been there before     ^^^^^^^^           ^^^^^^^^
    draft  the tokens after the match: 2 from desk 1

The random number of a token is a hash of (seed, position), so a step that computes a draft of k
tokens samples exactly the tokens that k steps would have sampled, and keeps them up to the first
that differs from the draft. The replies do not change, so the number of steps follows from replies
that were played without drafts. `python -m benchmarks.drafts [RECIPE ...] [--section.option=value]`
plays a few groups with the model of each recipe and prints tokens a step (1 without drafts) and the
share of drafted tokens that are accepted. It counts steps, not seconds: a step with drafts costs
more.
"""

import sys
from collections.abc import Iterable, Sequence

from mage.config.loading import load_recipe
from mage.play import play_groups
from mage.training.build import build_components
from mage.training.tasks import draw_tasks
from mage.types import MetaEpisode

Ids = tuple[int, ...]
WORLDS = ("kuhn_poker", "tic_tac_toe", "alfworld", "webshop")
LONGEST, SHORTEST, DRAFT = 4, 2, 8  # tokens of a match, and of a draft
_SMALL = ("--play.groups=4", "--play.members=2", "--run.device=cpu", "--run.threads=1")


def propose(ids: Sequence[int], most: int) -> Ids:
    """The tokens after the latest earlier place of the longest match of the last tokens.

    >>> propose((5, 6, 7, 8, 5, 6), 3)
    (7, 8, 5)
    >>> propose((5, 6, 7), 3)
    ()
    """
    known = tuple(ids)
    for size in range(min(LONGEST, len(known) - 1), SHORTEST - 1, -1):
        end = known[-size:]
        for start in range(len(known) - size - 1, -1, -1):
            if known[start : start + size] == end:
                return known[start + size : start + size + most]
    return ()


def count_steps(prompt: Ids, reply: Ids) -> tuple[int, int, int]:
    """Steps of a reply with drafts, drafted tokens, and accepted ones.

    >>> count_steps((5, 6, 7, 8, 9), (5, 6, 7, 8, 9))
    (3, 5, 3)
    """
    steps = drafted = accepted = done = 0
    while done < len(reply):
        draft = propose(prompt + reply[:done], DRAFT)
        same = 0
        while same < len(draft) and reply[done + same : done + same + 1] == draft[same : same + 1]:
            same += 1
        steps, drafted, accepted = steps + 1, drafted + len(draft), accepted + same
        done += same + 1
    return steps, drafted, accepted


def replies(metas: Iterable[MetaEpisode]) -> list[tuple[Ids, Ids]]:
    """Prompt and reply of every turn."""
    turns = (turn for meta in metas for episode in meta.episodes for turn in episode.turns)
    return [(turn.prompt_ids, turn.completion.token_ids) for turn in turns]


def measure(world: str, options: Sequence[str] = ()) -> str:
    recipe = load_recipe(world, [*_SMALL, *options])
    setup = build_components(recipe).begin_play()
    found = replies(play_groups(setup, draw_tasks(recipe, 1), 0))
    tokens = sum(len(reply) for _, reply in found)
    counts = zip(*(count_steps(*one) for one in found), strict=True)
    steps, drafted, accepted = (sum(one) for one in counts)
    return (
        f"{world:12} {recipe.model.path}: {len(found)} replies of {tokens / len(found):.1f} "
        f"tokens, {tokens / steps:.2f} tokens a step, {accepted / max(1, drafted):.0%} of "
        f"{drafted} drafted tokens accepted"
    )


if __name__ == "__main__":
    words = sys.argv[1:]
    options = [word for word in words if word.startswith("--")]
    for name in [word for word in words if word not in options] or WORLDS:
        print(measure(name, options), flush=True)
