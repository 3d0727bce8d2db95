"""Drafts from the prompt: how many tokens a decode step would give.

    python -m benchmarks.drafts smollm2_alfworld --model smollm2-alfworld --out drafts.json

Plays the first groups of a recipe twice with different seeds and counts. At each step the longest
piece at the end of prompt and reply (up to `LONGEST` tokens) is looked up, and the tokens that
followed its newest occurrence are the draft. A step gives the tokens of the draft that are those
that were sampled, and one more. So the count is exact for a sampler that compares its own tokens,
drawn with the seed of the request, with the draft; it changes no reply. Sources: the sequence
itself ("prompt"), or also the replies of the first play ("replies", as those of the last update).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from mage.config.loading import load_recipe
from mage.play.groups import play_groups
from mage.seeds import derive
from mage.training.build import build_components
from mage.training.tasks import draw_tasks
from mage.types import Turn

LONGEST = 4
DRAFTS = (2, 4, 8)
Ids = tuple[int, ...]


class Lookup:
    """The place after the newest occurrence of every piece of up to `LONGEST` tokens."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.after: dict[Ids, int] = {}

    def add(self, ids: Sequence[int]) -> None:
        """Append tokens; a piece is found once the token after it is known."""
        for one in ids:
            for size in range(1, min(LONGEST, len(self.ids)) + 1):
                self.after[tuple(self.ids[-size:])] = len(self.ids)
            self.ids.append(one)

    def find(self, ending: Sequence[int], size: int, count: int) -> list[int]:
        """Up to `count` tokens that followed the last `size` tokens of `ending`."""
        start = self.after.get(tuple(ending[-size:]))
        return [] if start is None else self.ids[start : start + count]


def steps_of(prompt: Ids, reply: Ids, count: int, others: Lookup | None) -> int:
    """Decode steps for a reply with drafts of `count` tokens."""
    own, done, steps = Lookup(), 0, 0
    own.add(prompt)
    while done < len(reply):
        draft = next(
            (
                found
                for size in range(LONGEST, 0, -1)
                for source in (own, others)
                if source is not None and (found := source.find(own.ids, size, count))
            ),
            [],
        )
        right = 0
        for drafted, sampled in zip(draft, reply[done:], strict=False):
            if drafted != sampled:
                break
            right += 1
        taken = reply[done : done + right + 1]
        own.add(taken)
        done, steps = done + len(taken), steps + 1
    return steps


def play(recipe: str, changes: Sequence[str]) -> list[list[Turn]]:
    """The turns of two plays of the first groups."""
    parts = build_components(load_recipe(recipe, changes))
    plays = []
    for seed in (0, 1):
        parts.engine.refresh(seed)
        tasks = draw_tasks(parts.recipe, seed + 1)
        metas = play_groups(parts.play_setup(), tasks, derive("drafts", seed))
        episodes = [episode for meta in metas for episode in meta.episodes]
        turns = [turn for one in episodes for turn in (one.reflection, *one.turns)]
        plays.append([turn for turn in turns if turn is not None])
    return plays


def measure(before: Sequence[Turn], now: Sequence[Turn]) -> dict[str, object]:
    """Tokens a step by source and length of the draft; shares of `now`."""
    others = Lookup()
    for turn in before:
        others.add((*turn.prompt_ids[-LONGEST:], *turn.completion.token_ids))
    replies = [(turn.prompt_ids, turn.completion.token_ids) for turn in now]
    tokens = sum(len(reply) for _, reply in replies)
    found: dict[str, object] = {
        "replies": len(replies),
        "tokens_a_reply": tokens / len(replies),
        "tokens_a_prompt": sum(len(prompt) for prompt, _ in replies) / len(replies),
    }
    for name, source in (("prompt", None), ("replies", others)):
        for count in DRAFTS:
            steps = sum(steps_of(prompt, reply, count, source) for prompt, reply in replies)
            found[f"{name} {count}"] = tokens / steps
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--model", help="name or folder; default: the recipe's")
    parser.add_argument("--change", action="append", default=[], help="a recipe option")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args(words)
    model = [f"--model.path={given.model}"] if given.model else []
    found = measure(*play(given.recipe, [*model, *given.change]))
    for name, value in found.items():
        print(f"{name:16} {value:.4g}")
    if given.out is not None:
        given.out.write_text(json.dumps({"recipe": given.recipe, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
