"""benchmarks.drafts: decode steps with drafts from the prompt, worked by hand."""

import json
from pathlib import Path

from benchmarks import drafts


def test_a_draft_saves_the_steps_of_its_right_tokens() -> None:
    """Nothing follows 5, so a step gives 2. The prompt has 3, 4 after 2: a step gives 3, 4 and 9.

    With the reply 5, 2, 3 of somebody else, the first step gives 2, 3 and 4; then 5 is wrong.
    """
    prompt, reply = (1, 2, 3, 4, 5), (2, 3, 4, 9)
    assert drafts.steps_of(prompt, reply, 2, None) == 2
    assert drafts.steps_of(prompt, reply, 1, None) == 3
    others = drafts.Lookup()
    others.add((5, 2, 3))
    assert drafts.steps_of(prompt, reply, 2, others) == 2
    assert drafts.steps_of((7, 8), (9, 6), 4, None) == 2


def test_a_recipe_is_played_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "drafts.json"
    changes = ("--play.groups=1", "--play.members=2", "--run.workers=1")
    drafts.main(["demo", *(f"--change={one}" for one in changes), f"--out={out}"])
    found = json.loads(out.read_text())
    assert found["replies"] > 0
    assert 1 <= found["prompt 2"] <= found["prompt 8"] <= found["tokens_a_reply"]
