"""Packed training (shared tokens computed once) against one padded row per sample.

Whole `Learner.update` calls with the same samples, starting weights and optimizer steps. Each side
uses the micro-batch size that is fastest for it on this machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.measure import Comparison, compare, timed
from benchmarks.workload import make_recipe, play_samples
from mage.config.recipe import Recipe
from mage.learn.learner import Learner
from mage.learn.pack.tries import prepare
from mage.learn.update_metrics import Metrics
from mage.models.base import model_folder
from mage.models.loading import load_model
from mage.types import Sample

CASES = (("kuhn_poker", "reflections"), ("kuhn_poker", "both"), ("tic_tac_toe", "reflections"))
MICRO_TOKENS = {True: 2048, False: 4096}
TARGET = 2.5


def measure(
    cases: Sequence[tuple[str, str]] = CASES, groups: int = 8, rounds: int = 3
) -> Iterator[Comparison]:
    """Samples per second, and the largest difference between the two results."""
    for game, keep in cases:
        yield _measure_case(game, keep, groups, rounds)


def _measure_case(game: str, keep: str, groups: int, rounds: int) -> Comparison:
    recipe = make_recipe(game, keep, groups)
    samples = play_samples(recipe)
    packed, unpacked = _learner(recipe, packed=True), _learner(recipe, packed=False)
    logprobs = (packed.logprobs(prepare(samples)) - unpacked.logprobs(prepare(samples))).abs().max()
    first = [_update(learner, samples) for learner in (packed, unpacked)]
    ways = (timed(lambda: _update(packed, samples)), timed(lambda: _update(unpacked, samples)))
    found = compare(
        "packing", f"{game}/{keep}", ("packed", "rows"), "samples", len(samples), ways, rounds
    )
    tokens = first[0].row_tokens / len(samples)
    fewer = first[0].row_tokens / first[0].computed_tokens
    loss = abs(first[0].policy_loss - first[1].policy_loss)
    note = (
        f"{found.ours * tokens:,.0f} and {found.theirs * tokens:,.0f} row tokens/s; "
        f"{fewer:.1f} times fewer computed; "
        f"largest difference: logprob {logprobs:.0e}, loss {loss:.0e}"
    )
    return replace(found, note=note, target=TARGET)


def _learner(recipe: Recipe, packed: bool) -> Learner:
    options = recipe.learn.model_copy(
        update={"packed": packed, "micro_tokens": MICRO_TOKENS[packed]}
    )
    return Learner(load_model(model_folder(recipe), recipe.model.dtype, recipe.run.device), options)


def _update(learner: Learner, samples: Sequence[Sample]) -> Metrics:
    return learner.update(samples, entropy=learner.options.entropy, update=0)
