"""Thoughts in replies: the text between <think> and </think>.

Some chat templates already write <think> at the end of the prompt (Qwen3-2507 Thinking, the
DeepSeek-R1 distillations). Then the reply starts inside a thought: `opened` is true.
Thoughts never enter memory, history or the anchor of a state.
"""

import re

OPEN, CLOSE = "<think>", "</think>"
_TAGS = re.compile(f"({OPEN}|{CLOSE})")


def is_thinking(text: str, opened: bool = False) -> bool:
    """Whether a thought is open at the end of the text.

    >>> is_thinking("<think>hm"), is_thinking("hm", opened=True), is_thinking("hm</think>", True)
    (True, True, False)
    """
    return text.rfind(OPEN) > text.rfind(CLOSE) or (opened and CLOSE not in text)


def without_thoughts(text: str, opened: bool = False) -> str:
    """The text outside all thoughts. A closing tag without an opening one closes all before it.

    >>> without_thoughts("A <think>b</think>C"), without_thoughts("b</think>C <think>d", True)
    ('A C', 'C ')
    """
    shown: list[str] = []
    inside = opened
    for part in _TAGS.split(text):
        if part == CLOSE:
            shown = shown if inside else []
            inside = False
        elif part == OPEN:
            inside = True
        elif not inside:
            shown.append(part)
    return "".join(shown)
