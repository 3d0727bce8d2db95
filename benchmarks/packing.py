"""Packed training (every shared token computed once) against one padded row per sample: whole `Learner.update` calls.

Same samples, same weights at the start, same optimizer steps; each way has the micro-batch size at which it is fastest here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.measure import Comparison, compare, timed
from benchmarks.workload import make_recipe, play_samples
from mage.config.recipe import Recipe
from mage.learn.learner import Learner, Metrics
from mage.learn.packing import prepare
from mage.models.loading import load_model
from mage.types import Sample

CASES = (("kuhn_poker", "reflections"), ("kuhn_poker", "both"), ("tic_tac_toe", "reflections"))
MICRO_TOKENS = {True: 2048, False: 4096}
TARGET = 2.5


def measure(
    cases: Sequence[tuple[str, str]] = CASES, groups: int = 8, rounds: int = 3
) -> Iterator[Comparison]:
    """Samples learned from a second, and how far the two ways' numbers are apart."""
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
    note = (
        f"{found.ours * tokens:,.0f} and {found.theirs * tokens:,.0f} row tokens/s; {first[0].row_tokens / first[0].computed_tokens:.1f} times fewer computed; "
        f"largest difference: logprob {logprobs:.0e}, loss {abs(first[0].policy_loss - first[1].policy_loss):.0e}"
    )
    return replace(found, note=note, target=TARGET)


def _learner(recipe: Recipe, packed: bool) -> Learner:
    options = recipe.learn.model_copy(
        update={"packed": packed, "micro_tokens": MICRO_TOKENS[packed]}
    )
    return Learner(
        load_model(recipe.model_folder(), recipe.model.dtype, recipe.run.device), options
    )


def _update(learner: Learner, samples: Sequence[Sample]) -> Metrics:
    return learner.update(samples, entropy=learner.options.entropy, update=0)
