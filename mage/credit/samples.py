"""From meta-episodes to training rows: returns, then advantages, then samples."""

from collections.abc import Sequence

from mage.config.sections import ReturnOptions
from mage.credit.advantages.base import Estimator, estimate_all
from mage.credit.returns import compute_returns
from mage.types import Choices, Completion, Credit, MetaEpisode, ReplyKind, Return, Sample, Turn


def assign_credit(
    metas: Sequence[MetaEpisode], options: ReturnOptions, estimate: Estimator
) -> list[Credit]:
    """The returns of all turns as advantages, computed by `estimate`."""
    return estimate_all(estimate, compute_all_returns(metas, options))


def compute_all_returns(metas: Sequence[MetaEpisode], options: ReturnOptions) -> list[Return]:
    """The returns of all turns of some meta-episodes, in order."""
    return [item for meta in metas for item in compute_returns(meta, **dict(options))]


def make_samples(credits: Sequence[Credit], *, reflections: bool = True) -> list[Sample]:
    """Training rows with the token ids and logprobs exactly as they were sampled.

    A turn that called tools has one row for each reply, all with the advantage of the turn: results
    are part of prompts. Empty replies are left out. With `reflections=False`, reflections get
    advantage 0: only learn.kl and learn.token_entropy act on them.
    """
    return [
        Sample(
            prompt_ids=prompt_ids,
            reply_ids=completion.token_ids,
            old_logprobs=completion.logprobs,
            advantage=credit.advantage if reflections or turn.kind == "play" else 0.0,
            choices=choices,
            kind=kind,
            where=credit.source.where,
        )
        for credit in credits
        for turn in [credit.source.turn]
        for kind, prompt_ids, completion, choices in _replies(turn)
        if completion.token_ids
    ]


_Reply = tuple[ReplyKind, tuple[int, ...], Completion, Choices]


def _replies(turn: Turn) -> list[_Reply]:
    """Kind, prompt, completion and choices among legal moves of every reply of a turn."""
    calls: list[_Reply] = [("call", one.prompt_ids, one.completion, ()) for one in turn.calls]
    return [*calls, (turn.kind, turn.prompt_ids, turn.completion, turn.choices)]
