"""The work of the benchmarks: meta-episodes of both games with the embedded model."""

from mage.config.recipe import Recipe, build_recipe
from mage.credit.samples import assign_credit, make_samples
from mage.play import play_groups
from mage.seeds import derive
from mage.training.build import Components, build_components
from mage.training.tasks import draw_tasks
from mage.types import MetaEpisode, Sample

OPPONENTS = {
    "kuhn_poker": {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4},
    "tic_tac_toe": {"random": 0.4, "pattern-0": 0.2, "pattern-2": 0.2, "biased-centre-2": 0.2},
}


def make_recipe(game: str, keep: str, groups: int, **engine: object) -> Recipe:
    """Groups of 8 members, 3 episodes, one torch thread on the CPU, learner of the demo."""
    agent = {"max_tokens": 8} | (
        {"reflection_tokens": 48} if keep in ("reflections", "both") else {}
    )
    tables = {
        "run": {"threads": 1, "device": "cpu"},
        "environments": {"name": game},
        "opponents": {"train": OPPONENTS[game]},
        "play": {"groups": groups, "members": 8, "episodes": 3},
        "agent": agent,
        "memory": {"name": "notes", "keep": keep},
        "engines": {"name": "local", "context": 1024, **engine},
        "learn": {"lr": 1e-3, "minibatches": 4, "entropy": 0.5, "entropy_final": 0.1},
    }
    return build_recipe(tables)


def play(parts: Components, update: int = 1) -> list[MetaEpisode]:
    """The meta-episodes of one update, with an empty cache as in training."""
    parts.engine.refresh(update)
    return play_groups(
        parts.begin_play(), draw_tasks(parts.recipe, update), derive("benchmark", update)
    )


def play_samples(recipe: Recipe) -> list[Sample]:
    """The training rows of one update."""
    metas = play(build_components(recipe))
    return make_samples(assign_credit(metas, recipe.returns, recipe.estimator()))


def last_stage(recipe: Recipe) -> Recipe:
    """The recipe of the last stage; one without stages is its own."""
    return list(recipe.in_stages().values())[-1] if recipe.stages else recipe
