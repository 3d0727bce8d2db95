"""From meta-episodes to training rows: returns, then advantages, then samples."""

from collections.abc import Sequence

from mage.config.sections import ReturnOptions
from mage.credit.advantages.base import Estimator
from mage.credit.returns import compute_returns
from mage.types import Credit, MetaEpisode, Return, Sample


def assign_credit(
    metas: Sequence[MetaEpisode], options: ReturnOptions, estimate: Estimator
) -> list[Credit]:
    """The returns of all turns as advantages, computed by `estimate`."""
    return estimate(compute_all_returns(metas, options))


def compute_all_returns(metas: Sequence[MetaEpisode], options: ReturnOptions) -> list[Return]:
    """The returns of all turns of some meta-episodes, in order."""
    return [item for meta in metas for item in compute_returns(meta, **dict(options))]


def make_samples(credits: Sequence[Credit], *, reflections: bool = True) -> list[Sample]:
    """Training rows with the token ids and logprobs exactly as they were sampled.

    Empty replies are left out. With `reflections=False`, reflections get advantage 0: only the KL
    term acts on them.
    """
    return [
        Sample(
            prompt_ids=turn.prompt_ids,
            reply_ids=turn.completion.token_ids,
            old_logprobs=turn.completion.logprobs,
            advantage=credit.advantage if reflections or turn.kind == "play" else 0.0,
            choices=turn.choices,
            kind=turn.kind,
            where=credit.source.where,
        )
        for credit in credits
        if (turn := credit.source.turn).completion.token_ids
    ]
