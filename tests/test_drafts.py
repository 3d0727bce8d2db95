"""The count of steps with drafts: every token of a reply is made once, by a draft or by a step."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.drafts import DRAFT, count_steps, propose

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=30).map(tuple)


def test_a_copy_of_the_prompt_is_drafted_after_two_tokens() -> None:
    assert propose((5, 6, 7, 8, 5, 6), 3) == (7, 8, 5)
    assert propose((5, 6, 7), 3) == ()
    assert count_steps((5, 6, 7, 8, 9), (5, 6, 7, 8, 9)) == (3, 5, 3)


@given(TEXT, TEXT)
def test_steps_and_accepted_tokens_make_the_reply(
    prompt: tuple[int, ...], reply: tuple[int, ...]
) -> None:
    steps, drafted, accepted = count_steps(prompt, reply)
    # The last step may end with an accepted token, after which the reply needs no other.
    assert steps + accepted in (len(reply), len(reply) + 1)
    assert accepted <= drafted <= steps * DRAFT
