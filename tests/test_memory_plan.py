"""The memory plan: close to measured peaks, choices that fit, and advice where nothing fits."""

import json
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_toys import make_model
from typer.testing import CliRunner

import mage
from mage.api.agents import find_candidate, find_player
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.config.recipe import Recipe
from mage.config.sections import LearnOptions
from mage.engines.pool import memory_for_slots
from mage.learn.learner import Learner
from mage.learn.token_logprobs import LOGITS_AT_ONCE
from mage.models.base import base_folder
from mage.models.shapes import PRESETS, find_shape, read_shape
from mage.play import play_groups
from mage.ranks.ranks import Ranks
from mage.run_folder import RunFolder
from mage.training import memory_bytes
from mage.training.build import build_components
from mage.training.fit import choices_of, fit_to_gpu, fit_training
from mage.training.memory_bytes import GB, PlanRequest
from mage.training.memory_plan import plan_memory, plan_request
from mage.training.plan_advice import advice, apply_plan, explain_misfit
from mage.training.resume import changed_plan, read_plan
from mage.training.tasks import draw_tasks
from mage.types import MetaEpisode, Turn

# Measured on an H200 with recompute and 16,384 tokens at once (docs/log): peak GB of an update.
MEASURED = (
    ("smollm2-135m", 0, 5.0),
    ("smollm2-360m", 0, 9.7),
    ("smollm2-1.7b", 0, 36.4),
    ("qwen3-4b", 0, 83.4),
    ("smollm2-1.7b", 16, 10.8),
    ("qwen3-4b", 16, 21.8),
)


def plan(recipe: str, model: str, memory: float, *changes: str):  # type: ignore[no-untyped-def]
    return plan_memory(load_recipe(recipe, changes), PRESETS[model], memory * GB)


@pytest.mark.parametrize(("model", "rank", "measured"), MEASURED)
def test_the_estimate_is_within_a_tenth_of_the_measured_peak(model, rank, measured):
    changes = ("--learn.kl=0", "--learn.recompute=true", "--learn.micro_tokens=16384")
    found = plan("paper_tic_tac_toe", model, 200, *changes, f"--learn.lora_rank={rank}")
    assert found.learning_bytes / GB == pytest.approx(measured, rel=0.1)


def test_parameters_of_the_presets_are_those_of_the_published_models():
    qwen = {"qwen3-0.6b": 0.596e9, "qwen3-1.7b": 1.72e9, "qwen3-4b": 4.02e9, "qwen3-8b": 8.19e9}
    smollm = {"smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120}
    for name, count in (qwen | smollm).items():
        assert PRESETS[name].parameters == pytest.approx(count, rel=0.005)


def test_the_parts_of_all_weights_worked_by_hand():
    """4.02 B parameters: 2 bytes of weights, 4 of masters, 8 of AdamW, 4 + 2 of gradients."""
    fixed = plan("paper_alfworld", "qwen3-4b", 143).fixed
    own = (fixed.weights, fixed.masters, fixed.optimizer)
    bytes_of = (*own, fixed.gradient_sums, fixed.micro_batch_gradients)
    assert [part / 4.022e9 for part in bytes_of] == pytest.approx([2, 4, 8, 4, 2], rel=1e-3)
    assert fixed.reference == 0
    assert fixed.bytes_per_slot == 8192 * 36 * 2 * 8 * 128 * 2


@pytest.mark.parametrize("ranks", [1, 8])
def test_full_sharding_divides_the_gradients_at_every_moment(ranks):
    """8.19 B parameters, 4,096 tokens without recompute: the peak is at the start.

    There are 2 bytes of weights and (4 + 8) / ranks of masters and moments per parameter, the sums
    of earlier micro-batches (4 / ranks), activations and logits, and no gradients of this one yet.
    """
    words = ("--learn.shard=full", "--learn.recompute=false", "--learn.micro_tokens=4096")
    recipe, shape = load_recipe("paper_alfworld", words), PRESETS["qwen3-8b"]
    found = plan_memory(recipe, shape, 200 * GB, ranks=ranks)
    inputs, values = shape.hidden * shape.layers, 1.15 * shape.layer_values * shape.layers
    logits = 2**28 * 8 + 6 * shape.embedding_weights
    expected = (2 + 16 / ranks) * shape.parameters + 2 * 4096 * (inputs + values) + logits
    assert found.learning_bytes == pytest.approx(expected)
    assert found.parts()["gradients"] * GB == pytest.approx(4 / ranks * shape.parameters)


def test_full_sharding_makes_a_divided_copy_of_a_float32_model_too():
    recipe, shape = load_recipe("paper_alfworld", ["--learn.shard=full"]), PRESETS["qwen3-4b"]
    for ranks, masters in ((1, 0.0), (8, 4 / 8 * shape.parameters)):
        found = plan_memory(recipe, shape, 200 * GB, half_precision=False, ranks=ranks)
        assert found.fixed.masters == masters


@pytest.mark.parametrize("shard", ["optimizer", "full"])
def test_a_warm_up_divides_nothing_because_rank_0_does_it_alone(shard):
    recipe, shape = load_recipe("paper_alfworld", [f"--learn.shard={shard}"]), PRESETS["qwen3-8b"]
    whole = plan_memory(recipe.changed(learn={"shard": "none"}), shape, 80 * GB)
    found = plan_memory(recipe, shape, 80 * GB, ranks=8, use="warmup")
    assert found.learning_bytes == whole.learning_bytes
    told = explain_misfit(found)
    assert told.startswith("the warm-up needs")
    assert "--learn.shard" not in told


def test_a_warm_up_on_random_play_is_not_advised_another_dtype():
    """It always computes in float32."""
    shape, half = PRESETS["qwen3-4b"], ("--model.dtype=bfloat16",)
    for play, advised in (("random", False), ("expert", True)):
        words = [f"--warmup.play={play}", "--model.dtype=float32", "--learn.lora_rank=16"]
        recipe = load_recipe("paper_tic_tac_toe", words)
        found = plan_memory(recipe, shape, 40 * GB, half_precision=False, use="warmup")
        assert not found.fits
        assert (half in [one.words for one in advice(found)]) == advised


def test_a_float32_model_holds_the_gradients_of_earlier_micro_batches():
    recipe, shape = load_recipe("paper_alfworld"), PRESETS["qwen3-4b"]
    fixed = plan_memory(recipe, shape, 200 * GB, half_precision=False).fixed
    assert (fixed.gradient_sums, fixed.micro_batch_gradients) == (4 * shape.parameters, 0)


def test_the_plan_uses_the_sizes_of_the_engine_and_of_the_loss():
    assert LOGITS_AT_ONCE["cuda"] == memory_bytes._LOGITS_AT_ONCE
    small, large = (
        plan("paper_alfworld", "qwen3-4b", 143, f"--engines.max_batch_tokens={tokens}").fixed
        for tokens in (4096, 8192)
    )
    of_tokens = 2 * 4096 * PRESETS["qwen3-4b"].layer_values * 2
    assert large.engine_bytes - small.engine_bytes == of_tokens
    assert plan("paper_alfworld", "qwen3-4b", 143).fixed.engine_bytes == large.engine_bytes


def test_a_kl_reference_is_a_copy_of_the_weights_unless_adapters_are_trained():
    found = plan("paper_tic_tac_toe", "qwen3-4b", 143, "--learn.kl=0.1")
    assert found.fixed.reference == found.fixed.weights
    assert plan("paper_tic_tac_toe", "qwen3-4b", 80, "--learn.lora_rank=16").fixed.reference == 0


@pytest.mark.parametrize(
    ("rank", "engine", "weight_bytes"),
    [(0, (), 6), (0, ("--engines.name=vllm", "--engines.gpu_memory=0.1"), 6), (16, (), 4)],
)
def test_each_copy_of_a_league_holds_a_model_and_a_pool(rank, engine, weight_bytes):
    """A parameter has 2 bytes of weights and 4 of masters; with LoRA 2 bytes of W and 2 of W0.

    Embeddings have no W0, and A and B are small, so LoRA has a tolerance.
    """
    pool = '{"league-20-1.0-3" = 0.5, random = 0.5}'
    alike = (f"--learn.lora_rank={rank}", *engine)
    without = plan("paper_tic_tac_toe", "qwen3-8b", 2000, *alike)
    found = plan("paper_tic_tac_toe", "qwen3-8b", 2000, *alike, f"--opponents.train={pool}")
    fixed, alone = found.fixed, without.fixed
    own = weight_bytes * 8.19e9 + alone.engine_share
    assert fixed.league_copies * fixed.bytes_per_league_copy == pytest.approx(
        3 * own, rel=0.15 if rank else 0.005
    )
    assert found.learning_bytes - without.learning_bytes == pytest.approx(
        3 * fixed.bytes_per_league_copy
    )
    assert (fixed.engines, found.pool) == (4 * alone.engines, 4 * without.pool)
    assert found.playing_bytes - without.playing_bytes == pytest.approx(
        3 * (fixed.bytes_per_league_copy + alone.engines + without.pool)
    )
    assert set(found.parts()) - set(without.parts()) == {"league copies"}


def test_a_league_leaves_fewer_slots_and_is_a_row_of_the_table():
    pool = '--opponents.train={"league-20" = 0.5, random = 0.5}'
    words = ["--learn.lora_rank=16", "--engines.context=8192"]
    without = plan("paper_tic_tac_toe", "qwen3-4b", 80, *words)
    found = plan("paper_tic_tac_toe", "qwen3-4b", 80, *words, pool)
    assert found.fits
    assert found.slots < without.slots
    left = found.usable - found.playing_bytes
    assert 0 <= left < 3 * found.fixed.bytes_per_slot
    command = ["plan", "paper_tic_tac_toe", "--model", "qwen3-4b", *words]
    tables = [CliRunner().invoke(app, [*command, *more]).output for more in ([], [pool])]
    assert ["league copies" in table for table in tables] == [False, True]
    assert "expected on an H200: " in tables[0]


def test_no_speed_is_estimated_below_100_million_parameters():
    shown = CliRunner().invoke(app, ["plan", "demo"]).output
    assert "tokens/s" not in shown
    assert "only for models of at least 100 M parameters" in shown
    figures = json.loads(CliRunner().invoke(app, ["plan", "demo", "--json"]).output)
    assert figures["play_tokens_per_second"] is figures["learn_tokens_per_second"] is None


@pytest.mark.parametrize("recipe", ["alfworld", "webshop", "sokoban", "kuhn_poker", "tic_tac_toe"])
def test_the_papers_recipes_fit_an_h200_and_with_lora_80_gb(recipe):
    whole = plan(f"paper_{recipe}", "qwen3-4b", 143)
    adapters = plan(f"paper_{recipe}", "qwen3-4b", 80, "--learn.lora_rank=16")
    assert whole.fits
    assert whole.peak <= 135 * GB
    assert adapters.fits
    assert adapters.peak <= 75 * GB


def test_a_smaller_card_gets_recompute_smaller_micro_batches_and_fewer_slots():
    large, small = (
        plan("paper_alfworld", "qwen3-4b", memory, "--learn.lora_rank=16") for memory in (150, 32)
    )
    assert (large.recompute, large.slots) == (False, 64)
    assert small.fits
    assert small.recompute
    assert small.slots < 64
    assert small.micro_tokens <= large.micro_tokens


def test_adapters_of_layers_that_are_not_compiled_need_the_gradients_of_their_weights():
    """Measured on an H200 with projected gradients: 25.9 GB."""
    changes = ("--learn.recompute=true", "--learn.micro_tokens=16384", "--learn.lora_rank=16")
    other = replace(PRESETS["qwen3-4b"], plain=False)
    found = plan_memory(load_recipe("paper_alfworld", changes), other, 200 * GB)
    assert found.learning_bytes / GB == pytest.approx(25.9, rel=0.1)


def test_where_slots_do_not_fit_the_plan_names_a_context_at_which_all_of_them_do():
    def planned(*more: str):  # type: ignore[no-untyped-def]
        short = ("--learn.lora_rank=16", "--agent.max_tokens=256")
        return plan("paper_webshop", "qwen3-4b", 78, *short, *more)

    (reason,) = [one for one in planned().reasons if "28" in one]
    named = int(reason.rpartition("engines.context = ")[2].rstrip(")"))
    assert planned(f"--engines.context={named}").slots == 64
    assert planned(f"--engines.context={named + 512}").slots < 64


def test_a_large_model_gets_micro_batches_of_at_most_8192_tokens():
    """As measured: at 4 B larger ones are not faster. A small model needs them."""
    words = ("--learn.lora_rank=16", "--engines.context=2816")
    large, small, given = (
        plan("paper_kuhn_poker", shape, 200, *words, *more)
        for shape, more in (
            ("qwen3-4b", ()),
            ("qwen3-0.6b", ()),
            ("qwen3-4b", ("--learn.micro_tokens=16384",)),
        )
    )
    assert [found.micro_tokens for found in (large, small, given)] == [8192, 16384, 16384]
    assert not large.recompute


def test_given_options_are_kept_and_named_as_given():
    changes = ("--learn.recompute=true", "--learn.micro_tokens=4096")
    found = plan("paper_alfworld", "qwen3-4b", 143, *changes)
    assert (found.recompute, found.micro_tokens) == (True, 4096)
    assert sum("given by the recipe" in reason for reason in found.reasons) == 2


def test_the_plan_is_put_into_the_recipe():
    recipe = load_recipe("paper_alfworld", ["--learn.lora_rank=16"])
    found = plan_memory(recipe, PRESETS["qwen3-4b"], 80 * GB)
    fitted = apply_plan(recipe, found)
    assert fitted.learn.micro_tokens == found.micro_tokens
    assert fitted.learn.recompute is found.recompute
    assert fitted.engines.options["slots"] == found.slots
    assert fitted.engines.options["context"] == 8192


def test_pools_stay_in_learning_where_the_card_holds_both():
    """The sum of both phases is 10.5 + 12.4 - .6 GB; 94 % of a card less 1 GB is usable."""
    sizes = {memory: plan("smollm2_alfworld", "smollm2-135m", memory) for memory in (141, 26, 24)}
    assert [found.keeps_pool for found in sizes.values()] == [True, True, False]
    assert all(found.fits and not found.recompute for found in sizes.values())
    assert not plan("paper_alfworld", "qwen3-4b", 141, "--learn.lora_rank=16").keeps_pool


def test_recorded_layers_keep_their_activations_in_both_phases():
    """11.8 GB beside the 10.5 GB of play and the 12.4 GB of learning."""
    plain, recorded = (
        plan("smollm2_alfworld", "smollm2-135m", 141, f"--learn.graphs={word}")
        for word in ("false", "true")
    )
    extra = plain.parts()["activations"]
    assert recorded.parts() == pytest.approx(plain.parts() | {"recorded layers": extra})
    for phase in ("playing_bytes", "learning_bytes"):
        assert getattr(recorded, phase) == pytest.approx(getattr(plain, phase) + extra * GB)
    assert plan("smollm2_alfworld", "smollm2-135m", 38, "--learn.graphs=true").keeps_pool
    small = plan("smollm2_alfworld", "smollm2-135m", 24, "--learn.graphs=true")
    assert not small.fits
    assert "--learn.graphs=false" in explain_misfit(small)


def test_graphs_take_no_memory_where_nothing_is_recorded():
    """A warm-up on random play computes forests; layers that are not compiled stay as they are."""
    recipe = load_recipe("smollm2_kuhn_poker", ["--learn.graphs=true"])
    shape = PRESETS["smollm2-135m"]
    assert plan_memory(recipe, shape, 80 * GB).recorded
    for use in ("warmup", "checkpoint", "model"):
        assert not plan_memory(recipe, shape, 80 * GB, use=use).recorded
    taught = load_recipe("smollm2_alfworld", ["--learn.graphs=true"])
    assert plan_memory(taught, shape, 80 * GB, use="warmup").recorded
    assert not plan_memory(taught, replace(shape, plain=False), 80 * GB).recorded


@pytest.mark.parametrize("keeps", [False, True])
def test_play_is_the_same_whether_pools_stay_or_are_freed(keeps):
    recipe = load_recipe("kuhn_poker", ["--run.workers=1", "--play.groups=1", "--play.members=2"])
    recipe = recipe.changed(engines={"run_ahead": True, "slots": 4}, run={"device": "cpu"})
    parts = build_components(recipe, keeps)
    engine: Any = parts.engine
    played = []
    for update in (1, 2):
        engine.refresh(update)
        metas = play_groups(parts.begin_play(), draw_tasks(recipe, 1), seed=1)
        played.append([turn.completion.token_ids for turn in turns_of(metas)])
        parts.release()
        assert bool(engine.pool.store.numel()) == keeps
    assert played[0] == played[1]


def turns_of(metas: list[MetaEpisode]) -> list[Turn]:
    return [turn for meta in metas for episode in meta.episodes for turn in episode.turns]


def test_a_plan_that_does_not_fit_says_what_would_make_it_fit():
    recipe = load_recipe("paper_alfworld")
    found = plan_memory(recipe, PRESETS["qwen3-4b"], 40 * GB)
    assert not found.fits
    assert any("--learn.lora_rank=16" in one.words for one in advice(found))
    with pytest.raises(ValueError, match=r"--learn\.lora_rank=16"):
        apply_plan(recipe, found)


Card = Callable[[float, float], None]
CARDS = ((1, 80), (8, 80), (1, 24), (1, 141))


@pytest.fixture
def card(monkeypatch):
    """Sets the free and the total GB of one card, which this machine then seems to have."""
    monkeypatch.setattr("mage.training.fit.pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("mage.training.fit.pick_cache", lambda cache, device: cache)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)

    def set_memory(free: float, total: float) -> None:
        found = (int(free * GB), int(total * GB))
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: found)

    return set_memory


@pytest.mark.e2e
@pytest.mark.parametrize("world", ["alfworld", "webshop", "sokoban", "kuhn_poker", "tic_tac_toe"])
def test_every_piece_of_advice_fits_when_it_is_applied(world):
    """The model of the recipe is Qwen3-4B, whose shape needs no download."""
    for gpus, memory in CARDS:
        cards = ["--gpus", str(gpus), "--gpu-memory", str(memory)]
        words = ["plan", f"paper_{world}", "--model", "Qwen/Qwen3-4B", *cards]
        shown = CliRunner().invoke(app, words)
        assert shown.output.startswith("model Qwen/Qwen3-4B, 4.0 B parameters, on ")
        recipe = load_recipe(f"paper_{world}")
        found = plan_memory(recipe, PRESETS["qwen3-4b"], memory * GB, ranks=gpus)
        assert shown.exit_code == (0 if found.fits else 2)
        assert found.fits == (memory == 141)
        assert len(advice(found)) >= (0 if found.fits else 3)
        for one in advice(found):
            assert str(one) in shown.output
            applied = CliRunner().invoke(app, [*words, *one.words])
            assert applied.exit_code == 0, (one, applied.output)


def test_eight_cards_of_80_gb_train_all_weights_with_a_divided_optimizer():
    words = ["plan", "paper_alfworld", "--model", "Qwen/Qwen3-4B", "--json", "--gpus"]
    alone, shared = (
        json.loads(CliRunner().invoke(app, [*words, gpus, "--learn.shard=optimizer"]).output)
        for gpus in ("1", "8")
    )
    assert (alone["fits"], shared["fits"]) == (False, True)
    assert (alone["gpus"], shared["gpus"]) == (1, 8)
    for part in ("masters", "optimizer"):
        assert shared["parts"][part] == pytest.approx(alone["parts"][part] / 8)


def test_given_options_that_do_not_fit_are_advised_against():
    given = ("--learn.recompute=false", "--learn.micro_tokens=16384", "--learn.lora_rank=16")
    found = plan("paper_alfworld", "qwen3-4b", 80, *given)
    assert not found.fits
    told = {one.words[0] for one in advice(found)}
    assert told >= {"--learn.recompute=true", "--learn.micro_tokens=2048"}


def test_play_without_training_needs_neither_optimizer_nor_gradients():
    """4.02 B parameters: 2 bytes of weights, and float32 masters while a checkpoint is loaded."""
    recipe, shape = load_recipe("paper_alfworld"), PRESETS["qwen3-4b"]
    alone, loaded = (
        plan_memory(recipe, shape, 60 * GB, use=use) for use in ("model", "checkpoint")
    )
    assert not plan_memory(recipe, shape, 60 * GB).fits
    for found, masters in ((alone, 0), (loaded, 4)):
        fixed = found.fixed
        assert found.fits
        assert fixed.both_phases / 4.022e9 == pytest.approx(2, rel=1e-3)
        assert fixed.loaded_masters / 4.022e9 == pytest.approx(masters, rel=1e-3)
        assert found.peak == pytest.approx(fixed.both_phases + fixed.engine_bytes + found.pool)
    assert loaded.slots == alone.slots
    loading = plan_memory(recipe, shape, 20 * GB, use="checkpoint")
    assert loading.peak / 4.022e9 == pytest.approx(6, rel=1e-3)
    assert not loading.fits
    small = plan_memory(recipe, shape, 8 * GB, use="model")
    told = explain_misfit(small)
    assert "the agent needs" in told
    assert "cards with 16 GB" in told
    assert "learn." not in told


@pytest.mark.parametrize("command", ["evaluate", "play", "python"])
def test_evaluate_and_play_follow_the_plan_and_run_gpu_memory(command, card, monkeypatch):
    """Without a GPU: the recipe is caught before the model is loaded."""
    fractions, recipes = list[float](), list[Recipe]()

    class Caught(Exception):
        pass

    def catch(recipe: Recipe, *, plays_only: bool) -> None:
        recipes.append(recipe)
        raise Caught

    card(140, 141)
    monkeypatch.setattr(
        "torch.cuda.set_per_process_memory_fraction", lambda share, device: fractions.append(share)
    )
    monkeypatch.setattr("mage.api.agents.build_components", catch)
    recipe = load_recipe("demo", ["--run.gpu_memory=2"])
    monkeypatch.setattr("mage.api.agents._recipe_of", lambda *words: recipe)
    world = recipe.environment()
    commands: dict[str, Callable[[], object]] = {
        "evaluate": lambda: find_candidate("demo", ["--run.gpu_memory=2"], None),
        "play": lambda: find_player("rock_paper_scissors", world, (), None, "embedded-rps"),
        "python": lambda: mage.evaluate(recipe),
    }
    with pytest.raises(Caught):
        commands[command]()
    assert fractions == [pytest.approx(2 / 141)]
    expected = plan_memory(recipe, read_shape(base_folder(recipe)), 2 * GB, use="model")
    assert recipes[0].engines.options["slots"] == expected.slots


def test_every_stage_has_a_plan(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(
        'base = "paper_kuhn_poker"\n[[stages]]\nname = "start"\n[stages.learn]\nlora_rank = 16\n'
        '[[stages]]\nname = "whole"\n'
    )
    words = ["plan", str(path), "--model", "qwen3-4b"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert "stage start" in shown.output
    assert "stage whole" in shown.output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert [found["stages"][name]["fits"] for name in ("start", "whole")] == [True, False]
    assert not found["fits"]


def test_the_verb_prints_a_table_or_json_and_fails_where_nothing_fits():
    words = ["plan", "paper_alfworld", "--model", "qwen3-4b", "--learn.lora_rank=16"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0
    assert "key/value pool" in shown.output
    figures = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert figures["fits"]
    assert figures["peak"] == pytest.approx(max(figures["play"], figures["learn"]))
    full = CliRunner().invoke(app, [*words[:4], "--gpu-memory", "40"])
    assert full.exit_code == 2
    assert "does not fit" in full.output


def test_shapes_are_read_from_folders_and_bad_ones_are_explained(tmp_path):
    found = find_shape("embedded")
    assert found.vocabulary > 500
    with pytest.raises(ValueError, match=r"the model no-such-model was not found: .* qwen3-4b"):
        find_shape("no-such-model")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="num_hidden_layers"):
        read_shape(tmp_path)


# -- a fake card


def as_qwen(monkeypatch: pytest.MonkeyPatch, *words: str) -> Recipe:
    """A recipe whose model has the shape of Qwen3-4B; its weights are not loaded."""
    monkeypatch.setattr("mage.training.fit.read_shape", lambda folder: PRESETS["qwen3-4b"])
    monkeypatch.setattr("mage.training.fit.base_folder", lambda recipe: Path())
    return load_recipe("paper_alfworld", ["--learn.lora_rank=16", *words])


class ManyRanks(Ranks):
    """One of several ranks; `found` is what the others have measured."""

    def __init__(self, size: int, *found: tuple[int, int]) -> None:
        super().__init__(0, size)
        self.found = found

    def gather(self, item: Any) -> list[Any]:
        return [item, *self.found]


def test_vllm_takes_its_share_of_the_whole_card_not_of_the_free_memory(card, monkeypatch):
    """60 GB of 140 are free: a share of 0.3 is 42 GB, and 18 GB are left for the rest."""
    card(60, 140)
    recipe = as_qwen(monkeypatch, "--engines.name=vllm", "--engines.gpu_memory=0.3")
    with pytest.raises(ValueError, match=r"the run needs \d\d\.\d GB of GPU memory, but 55\.4 GB"):
        fit_to_gpu(recipe)
    request = PlanRequest(recipe, PRESETS["qwen3-4b"], 60 * GB, True, 1, card=140 * GB)
    assert plan_request(request).parts()["sampler"] == pytest.approx(42)


def test_ranks_plan_alike_from_the_least_free_memory(card, monkeypatch):
    """Two ranks share a card of 80 GB. The other one has measured 70 GB, so each has 35."""
    card(80, 80)
    recipe, late = as_qwen(monkeypatch), (int(70 * GB), int(80 * GB))
    found, _ = fit_training(recipe, ManyRanks(2, late))
    expected = plan_memory(recipe, PRESETS["qwen3-4b"], 35 * GB, ranks=2)
    assert choices_of_fitted(found) == expected.choices()
    assert expected.slots < plan_memory(recipe, PRESETS["qwen3-4b"], 40 * GB).slots


def test_memory_of_an_agent_that_is_gone_counts_as_free(card, monkeypatch):
    """Parts of an agent refer to each other, so only garbage collection frees them."""
    card(80, 80)
    whole = fit_to_gpu(recipe := as_qwen(monkeypatch))
    card(30, 80)
    before = type("Agent", (), {})()
    before.itself = before
    weakref.finalize(before, card, 80, 80)
    del before
    assert fit_to_gpu(recipe) == whole


def test_a_plan_with_too_few_slots_needs_more_than_there_is():
    found = plan("paper_alfworld", "qwen3-4b", 24, "--learn.lora_rank=16")
    needed, usable = re.findall(r"(\d+\.\d) GB", explain_misfit(found))[:2]
    assert (found.slots, usable) == (1, "21.5")
    assert float(needed) > float(usable)


def choices_of_fitted(recipe: Recipe) -> dict[str, Any]:
    learn = recipe.learn
    slots = recipe.engines.options["slots"]
    return {"slots": slots, "micro_tokens": learn.micro_tokens, "recompute": learn.recompute}


def test_a_warm_up_has_the_whole_card_also_where_ranks_share_it(card, monkeypatch):
    card(80, 80)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # torchrun has started four ranks
    recipe = as_qwen(monkeypatch, "--run.workers=4")
    whole = plan_memory(recipe, PRESETS["qwen3-4b"], 80 * GB, ranks=1, use="warmup")
    assert choices_of_fitted(fit_to_gpu(recipe, use="warmup")) == whole.choices()


def test_a_resumed_run_keeps_its_plan_unless_it_does_not_fit_any_more(card, monkeypatch):
    recipe = as_qwen(monkeypatch)
    card(32, 80)
    first = fit_to_gpu(recipe)
    kept = choices_of(first)
    assert kept == choices_of_fitted(first)
    card(78, 80)
    assert choices_of_fitted(fit_to_gpu(recipe)) != kept
    assert fit_training(recipe, Ranks(), kept=kept)[0] == first
    card(28, 80)
    less = choices_of(fit_training(recipe, Ranks(), kept=kept)[0])
    assert less == choices_of_fitted(fit_to_gpu(recipe))
    (line,) = changed_plan(kept, less)
    assert f"slots {kept['slots']} (now {less['slots']})" in line
    assert changed_plan(kept, kept) == changed_plan(None, kept) == []


def test_a_checkpoint_holds_the_plan(tmp_path):
    folder = RunFolder.create(tmp_path / "run", load_recipe("demo"))
    assert read_plan(folder) is None
    plan = {"slots": 4, "micro_tokens": 2048, "recompute": True}
    learner = Learner(make_model(exact=False), LearnOptions())
    learner.save(folder.checkpoints, update=1, state={"plan": plan})
    assert read_plan(folder) == plan
    learner.save(folder.checkpoints, update=2, state={"plan": {"slots": "four"}})
    assert read_plan(folder) is None


def test_free_memory_is_that_of_the_card_of_the_engine(monkeypatch):
    """Rank 1 has the second card, while torch's current card is the first."""
    monkeypatch.setattr(
        "torch.cuda.mem_get_info", lambda device=None: (100 if device == second else 10, 100)
    )
    second = torch.device("cuda:1")
    assert memory_for_slots(second) == 90
