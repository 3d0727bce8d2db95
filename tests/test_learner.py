"""The learner: it learns, trains the right weights, skips bad gradients and resumes exactly."""

import math
import os
import random
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from learn_toys import SMALL, VOCABULARY, make_model, make_sample
from peft import PeftModel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.minibatches import cut_by_rows, split_by_unit
from mage.learn.pack.tries import Row, prepare
from mage.models.adapters import linear_layers, save_adapters
from mage.models.architecture import parts_of
from mage.models.loading import load_model
from mage.models.side_by_side import are_neighbours, place_side_by_side
from mage.ranks.ranks import Ranks
from mage.types import Sample, TurnRef


def play(seed: int, metas: int = 4) -> list[Sample]:
    """Meta-episodes of three turns and a reflection on random letters."""
    draw = random.Random(seed)

    def text(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(length))

    found = []
    for meta in range(metas):
        prompt: tuple[int, ...] = (1, 2, 3)
        for turn in range(4):
            reply = text(2)
            choices = ((1, (reply[1], (reply[1] + 1) % VOCABULARY)),)
            changes: dict[str, Any] = {"kind": "reflect"} if turn == 3 else {"choices": choices}
            changes |= {"where": TurnRef(meta // 2, meta % 2, 0, turn, "")}
            advantage = draw.gauss(0, 1)
            found.append(
                make_sample(
                    prompt, reply, advantage=advantage, old_logprobs=(-1.9, -2.0), **changes
                )
            )
            prompt = prompt + reply + text(2)
    return found


def small_learner(**options: Any) -> Learner:
    return Learner(make_model(exact=False), LearnOptions(**options))


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def probability(model: PreTrainedModel, prompt: tuple[int, ...], token: int) -> float:
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)[token])


@pytest.mark.e2e
@pytest.mark.parametrize(
    "options", [{}, {"packed": False}, {"lora_rank": 4}], ids=["all weights", "rows", "adapters"]
)
def test_a_bandit_is_learned(options):
    """After one prompt token 4 pays +1 and token 5 pays -1: p(4) rises above 1/2, p(5) falls."""
    prompt, learner = (1, 2, 3), small_learner(lr=0.02, **options)
    before = probability(learner.module, prompt, 5)
    for update in range(30):
        pulls = []
        for arm, gain in ((4, 1.0), (5, -1.0)):
            logprob = math.log(probability(learner.module, prompt, arm))
            pulls.append(make_sample(prompt, (arm,), advantage=gain, old_logprobs=(logprob,)))
        learner.update(pulls, entropy=0.0, update=update)
    assert probability(learner.module, prompt, 4) > 0.5
    assert probability(learner.module, prompt, 5) < before


@pytest.mark.parametrize("packed", [True, False])
def test_a_model_with_other_logits_is_refused(packed):
    """Scaled logits are refused, and the same model without a scale is trained."""

    def build(scale: float) -> Learner:
        config = AutoConfig.for_model("granite", **SMALL, logits_scaling=scale)
        model = AutoModelForCausalLM.from_config(config).eval()
        return Learner(model, LearnOptions(packed=packed), temperature=0.7)

    build(1.0)
    with pytest.raises(UserError, match="the learner computes other probabilities than Granite"):
        build(0.25)


def test_a_model_that_does_not_take_padded_rows_is_refused():
    """Doge computes other probabilities for a row beside a longer one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("doge", **SMALL)).eval()
    for value in model.parameters():
        if value.dim() > 1:
            value.data.normal_(0, 0.2)
    with pytest.raises(UserError, match="the learner computes other probabilities than Doge"):
        Learner(model, LearnOptions(packed=False))


def test_the_entropy_bonus_drives_the_action_to_uniform():
    """Without reward the bonus drives a choice of two and one of three to the maximum, log 6."""
    learner = small_learner(lr=0.02)
    sample = make_sample((1, 2), (3, 4), advantage=0.0, choices=((0, (3, 5)), (1, (0, 4, 6))))
    found = [learner.update([sample], entropy=1.0, update=n).action_entropy for n in range(30)]
    assert found[0] < 1.75 < found[-1] <= math.log(6) + 1e-5


def test_metrics_count_samples_tokens_and_steps():
    learner = Learner(make_model(), LearnOptions(minibatches=2, epochs=3, kl=0.1))
    samples = play(0)
    metrics = learner.update(samples, entropy=0.25, update=0)
    assert (metrics.steps, metrics.skipped_steps, metrics.samples) == (6, 0, 16)
    assert (metrics.reply_tokens, metrics.entropy_coefficient) == (32, 0.25)
    assert metrics.row_tokens == 3 * sum(len(one.prompt_ids) + 2 for one in samples)
    assert 0 < metrics.computed_tokens < metrics.row_tokens
    assert metrics.kl is not None
    assert metrics.kl >= 0
    assert metrics.gradient_norm > 0
    rows = small_learner(lr=0.01, minibatch_rows=10).update(play(0, 7), entropy=0.1, update=0)
    assert (rows.samples, rows.steps) == (28, 3), "as many steps as the rows need"
    many = small_learner(lr=0.01, minibatches=9)
    metrics = many.update(play(0, metas=2), entropy=0.1, update=0)
    assert (metrics.samples, metrics.skipped_steps) == (8, 0), "more than meta-episodes"
    assert all(torch.isfinite(value).all() for value in weights_of(many.module).values())
    with pytest.raises(ValueError, match="at least one sample"):
        learner.update([], entropy=0.0, update=0)


def test_an_unchanged_policy_has_no_mismatch_and_ratio_one():
    learner = Learner(make_model(), LearnOptions(kl=0.1))
    rows = prepare(play(1))
    logprobs = learner.logprobs(rows).tolist()
    exact = [
        replace(one.sample, old_logprobs=tuple(logprobs[one.offset : one.offset + 2]))
        for one in rows
    ]
    found = learner.update(exact, entropy=0.0, update=0)
    zeros = (found.mismatch, found.approx_kl, found.kl, found.clip_fraction)
    assert zeros == pytest.approx((0, 0, 0, 0), abs=1e-9)
    assert (found.ratio_mean, found.ratio_max) == pytest.approx((1, 1))


def test_only_adapters_are_trained_and_the_reference_is_the_base():
    model = make_model()
    rows = prepare(play(2))
    base, untouched = weights_of(model), Learner(make_model(), LearnOptions()).logprobs(rows)
    learner = Learner(model, LearnOptions(lr=0.05, lora_rank=2, kl=0.1))
    torch.testing.assert_close(learner.logprobs(rows), untouched, atol=1e-9, rtol=0)
    for update in range(3):
        learner.update(play(2), entropy=0.1, update=update)
    after, layers = weights_of(learner.module), {f"{name}.weight" for name in linear_layers(model)}
    assert layers
    assert all(torch.equal(after[name], base[name]) == (name not in layers) for name in base)
    assert all(torch.linalg.matrix_rank(after[name] - base[name]) <= 2 for name in layers)
    torch.testing.assert_close(learner.logprobs(rows, reference=True), untouched, atol=1e-9, rtol=0)
    assert (learner.logprobs(rows) - untouched).abs().max() > 1e-3


def test_adapter_gradients_and_files_equal_those_of_peft(tmp_path):
    make_model().save_pretrained(tmp_path / "base")
    folder, base = tmp_path / "adapters", str(tmp_path / "base")
    ours = Learner(make_model(), LearnOptions(lr=0.05, lora_rank=3))
    ours.update(play(0), entropy=0.0, update=0)  # B is no longer zero
    save_adapters(folder, ours.trainable.masters, rank=3, alpha=6.0, base=base)
    ours = Learner(load_model(folder).double(), LearnOptions(lora_rank=3), start=folder)
    theirs = PeftModel.from_pretrained(
        make_model(), str(folder), is_trainable=True, autocast_adapter_dtype=False
    ).double()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    losses = [model(ids, labels=ids).loss for model in (ours.module, theirs)]
    torch.testing.assert_close(*losses, atol=1e-6, rtol=0)
    for loss in losses:
        loss.backward()
    ours.trainable.add_gradient()
    expected = {
        name.removeprefix("base_model.model.").replace(".default", ""): value.grad
        for name, value in theirs.named_parameters()
        if "lora" in name
    }
    assert set(expected) == set(ours.trainable.masters)
    for name, master in ours.trainable.masters.items():
        torch.testing.assert_close(master.grad, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("at_once", [1, 2**25])
def test_stacked_layers_learn_the_same_as_separate_layers(at_once, monkeypatch):
    """Two micro-batches, so gradients are summed; expected: the sum with one layer at a time."""
    monkeypatch.setattr("mage.learn.adapters._STACKED_WEIGHTS", at_once)
    learner = Learner(make_model(), LearnOptions(lr=0.05, lora_rank=2))
    masters, scale = learner.trainable.masters, 2.0
    learner.update(play(0), entropy=0.0, update=0)
    learner.module.zero_grad()
    slopes = {name: torch.zeros_like(master) for name, master in masters.items()}
    for row in torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]]):
        learner.module(row[None], labels=row[None]).loss.backward()
        for name in linear_layers(learner.module):
            gradient = learner.module.get_parameter(f"{name}.weight").grad
            down, up = (f"{name}.lora_{side}.weight" for side in "AB")
            slopes[down] += scale * masters[up].detach().T @ gradient
            slopes[up] += scale * gradient @ masters[down].detach().T
        learner.trainable.add_gradient()
    for name, master in masters.items():
        torch.testing.assert_close(master.grad, slopes[name].detach())


@pytest.mark.parametrize("recompute", [False, True])
def test_adapters_get_in_a_trie_the_gradient_that_is_projected_in_a_forest(recompute):
    """Several micro-batches. In a trie the weights themselves get no gradient."""
    found = []
    for layout in ("forest", "trie"):
        options = LearnOptions(lr=0.05, lora_rank=3, micro_tokens=64, recompute=recompute)
        learner = Learner(make_model(), options, layout=layout)
        learner.update(play(0), entropy=0.1, update=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # every A and B has other values, and B is not zero
            for master in learner.trainable.masters.values():
                master.copy_(0.1 * torch.randn(master.shape, generator=generator))
        learner.trainable.write_to_model()
        learner.accumulate(prepare(play(1)), entropy=0.1)
        assert all(weight.grad is None for weight in learner.module.parameters())
        found.append({name: one.grad for name, one in learner.trainable.masters.items()})
    for name, gradient in found[0].items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[1][name], gradient)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_adapters_get_the_same_gradient_where_the_engine_has_placed_weights_side_by_side(kind):
    """Bit for bit; the weights are then not copied in every micro-batch."""
    found = []
    for placed in (False, True):
        model = make_model(kind)
        layers = [parts_of(layer) for layer in model.get_decoder().layers]
        if placed:
            for parts in layers:
                place_side_by_side(parts.qkv)
                place_side_by_side(parts.gate_up)
        assert all(are_neighbours(parts.qkv) == placed for parts in layers)
        learner = Learner(model, LearnOptions(lr=0.05, lora_rank=3), layout="trie")
        learner.update(play(0), entropy=0.1, update=0)  # so that B is not zero
        learner.accumulate(prepare(play(1)), entropy=0.1)
        found.append({name: one.grad for name, one in learner.trainable.masters.items()})
    for name, gradient in found[0].items():
        assert gradient.abs().max() > 0
        assert torch.equal(found[1][name], gradient)


def compare_merging(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """W0 + scale * B A by the kernel and by PyTorch; shapes that do not divide into its parts."""
    merge = import_module("mage.learn.merge_kernel").merge
    generator = torch.Generator().manual_seed(0)
    for rows, columns, rank in ((64, 512, 16), (33, 300, 3), (100, 40, 1)):
        shapes = (rows, columns), (rank, columns), (rows, rank)
        base, down, up = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
        base, out = base.to(dtype), torch.empty_like(base, dtype=dtype)
        merge(base, down, up, 0.5, out)
        wanted = (base.double() + 0.5 * up.double() @ down.double()).to(dtype)
        torch.testing.assert_close(out, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_the_interpreted_kernel_writes_adapters_into_weights():
    pytest.importorskip("triton")
    compare_merging("cpu", torch.float32, 1e-5)


def test_training_starts_from_an_adapter_folder_which_is_also_the_reference(tmp_path):
    make_model(exact=False).save_pretrained(tmp_path / "base")
    first = small_learner(lr=0.05, lora_rank=2)
    first.update(play(0), entropy=0.0, update=0)
    folder, rows = tmp_path / "adapters", prepare(play(2))
    save_adapters(folder, first.trainable.masters, rank=2, alpha=4.0, base=str(tmp_path / "base"))
    second = Learner(load_model(folder), LearnOptions(lr=0.05, lora_rank=2, kl=0.1), start=folder)
    begun, stored = second.logprobs(rows), first.logprobs(rows)
    torch.testing.assert_close(begun, stored, atol=2e-2, rtol=0)  # the folder is in bfloat16
    second.update(play(0), entropy=0.0, update=0)
    assert (second.logprobs(rows) - begun).abs().max() > 1e-3
    torch.testing.assert_close(second.logprobs(rows, reference=True), begun)
    with pytest.raises(ValueError, match=r"need learn\.lora_rank = 2, not 3"):
        Learner(load_model(folder), LearnOptions(lora_rank=3), start=folder)


def test_the_reference_of_full_training_does_not_change():
    learner = Learner(make_model(), LearnOptions(lr=0.01, kl=0.1))
    rows = prepare(play(2))
    before = learner.logprobs(rows, reference=True)
    learner.update(play(2), entropy=0.0, update=0)
    assert torch.equal(learner.logprobs(rows, reference=True), before)
    assert not torch.equal(learner.logprobs(rows), before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad):
    learner = small_learner(lr=0.01)
    before = weights_of(learner.module)
    metrics = learner.update([make_sample((1, 2), (3,), advantage=bad)], entropy=0.0, update=0)
    assert (metrics.steps, metrics.skipped_steps) == (1, 1)
    assert same(weights_of(learner.module), before)
    again = learner.update(play(0), entropy=0.0, update=1)
    assert again.skipped_steps == 0, "nothing of it is left behind"
    assert all(torch.isfinite(value).all() for value in weights_of(learner.module).values())


READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}


class Reads(TorchDispatchMode):
    """Notes the operations whose result the host needs, so that it waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        lists = [part for part in args if isinstance(part, (list, tuple))]
        by_mask = name.startswith("index") and any(
            isinstance(one, torch.Tensor) and one.dtype == torch.bool
            for part in lists
            for one in part
        )
        if name in READS or by_mask:
            self.found.append(name)
        return operation(*args, **kwargs or {})


@pytest.fixture
def reads(monkeypatch):
    """Also notes what the host copies: on a CPU these methods are no operation."""
    noted = Reads()
    before = {name: getattr(torch.Tensor, name) for name in ("tolist", "cpu", "numpy")}
    for name in before:

        def method(tensor: torch.Tensor, *given: Any, _name: str = name, **more: Any) -> Any:
            noted.found.append(_name)
            return before[_name](tensor, *given, **more)

        monkeypatch.setattr(torch.Tensor, name, method)
    return noted


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["all weights", "adapters"])
def test_the_host_reads_nothing_in_an_optimizer_step(options, reads):
    learner = Learner(make_model(), LearnOptions(**options), layout="trie")
    rows = prepare(play(0))
    with reads:
        ones = torch.ones(2)
        float(ones[0]), ones[ones > 0], ones.tolist(), ones.cpu(), ones.numpy()
        known, reads.found[:] = set(reads.found), []
        assert known == {"_local_scalar_dense", "index", "tolist", "cpu", "numpy"}
        for _ in range(2):
            learner.accumulate(rows, entropy=0.1)
            learner._step()
    assert reads.found == []


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["all weights", "adapters"])
def test_a_bad_gradient_is_skipped_where_the_optimizer_ignores_it(options, monkeypatch):
    """As on MPS, whose fused AdamW takes `found_inf` and does not read it."""
    compute = torch._fused_adamw_
    monkeypatch.setattr(
        torch, "_fused_adamw_", lambda *given, **more: compute(*given, **more | {"found_inf": None})
    )
    monkeypatch.setattr("mage.learn.learner._SKIPPING", ())
    learner = small_learner(lr=0.01, **options)
    before = weights_of(learner.module)
    bad = make_sample((1, 2), (3,), advantage=float("nan"))
    assert learner.update([bad], entropy=0.0, update=0).skipped_steps == 1
    assert same(weights_of(learner.module), before)
    assert learner.update(play(0), entropy=0.0, update=1).skipped_steps == 0
    assert not same(weights_of(learner.module), before)


@pytest.mark.e2e
@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["all weights", "adapters"])
def test_a_stopped_and_resumed_run_gives_identical_results(tmp_path, options):
    chosen = LearnOptions(lr=0.01, minibatches=2, kl=0.1, warmup=2, decay=0.5, **options)
    whole, first, second = (
        Learner(make_model(exact=False), chosen, seed=3, total_updates=6) for _ in range(3)
    )

    def train(learner: Learner, *updates: int) -> list[Any]:
        return [learner.update(play(one), entropy=0.1, update=one) for one in updates]

    expected = train(whole, 0, 1, 2, 3, 4, 5)
    train(first, 0, 1, 2)
    path = first.save(tmp_path, update=3, state={"seen": 3})
    assert second.load(path).state == {"seen": 3}
    assert train(second, 3, 4, 5) == expected[3:]
    assert same(weights_of(second.module), weights_of(whole.module))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    path = small_learner(lora_rank=2).save(tmp_path, update=0, state={})
    message = r"holds adapters whose shapes differ from this run's: .*learn\.lora_rank"
    for options in ({}, {"lora_rank": 3}):
        with pytest.raises(ValueError, match=message):
            small_learner(**options).load(path)


def test_float32_masters_keep_steps_below_half_precision(tmp_path):
    """bfloat16 cannot show steps of 1e-5 on weights near 0.3; the float32 masters keep them."""
    learner = Learner(make_model(exact=False).to(torch.bfloat16), LearnOptions(lr=1e-5))
    before = weights_of(learner.module)
    for update in range(3):
        learner.update(play(0), entropy=0.0, update=update)
    name = "lm_head.weight"
    assert not torch.equal(learner._masters[name], before[name].float())
    assert all(
        torch.equal(value, learner._masters[key].to(torch.bfloat16))
        for key, value in weights_of(learner.module).items()
    )
    fresh = Learner(make_model(exact=False).to(torch.bfloat16), LearnOptions(lr=1e-5))
    fresh.load(learner.save(tmp_path, update=3, state={}))
    assert torch.equal(fresh._masters[name], learner._masters[name])


def test_the_attention_of_the_module_is_restored():
    model = make_model()
    model.config._attn_implementation = "eager"
    Learner(model, LearnOptions()).update(play(0), entropy=0.0, update=0)
    assert model.config._attn_implementation == "eager"
    assert all(value.grad is None for value in model.parameters())


def owners_of(lots: list[list[Row]], *names: str) -> list[set[tuple[int, ...]]]:
    return [
        {tuple(getattr(row.sample.where, name) for name in names) for row in lot} for lot in lots
    ]


def test_minibatches_keep_groups_whole_if_there_are_enough():
    rows = prepare(play(0, metas=10))  # five groups of two
    lots = split_by_unit(rows, 2, 5, Ranks())
    assert sorted(map(len, owners_of(lots, "group"))) == [2, 3]
    assert not set.intersection(*owners_of(lots, "group"))
    assert sorted(row.offset for lot in lots for row in lot) == [row.offset for row in rows]


def test_minibatches_of_few_groups_keep_meta_episodes_whole_and_depend_on_the_seed():
    rows = prepare(play(0, metas=7))  # four groups
    lots = split_by_unit(rows, 5, 5, Ranks())
    owners = owners_of(lots, "group", "member")
    assert sorted(map(len, owners)) == [1, 1, 1, 2, 2]
    assert len(set.union(*owners)) == 7
    assert split_by_unit(rows, 5, 5, Ranks()) == lots
    assert split_by_unit(rows, 5, 6, Ranks()) != lots
    assert sum(map(bool, split_by_unit(rows, 50, 5, Ranks()))) == 7
    parts = cut_by_rows(rows, 3, 5, Ranks())  # 28 rows: four for each meta-episode
    assert sorted(map(len, parts)) == [9, 9, 10]
    assert sorted(row.offset for part in parts for row in part) == [row.offset for row in rows]
    assert cut_by_rows(rows, 3, 6, Ranks()) != parts


def test_every_update_draws_other_minibatches(monkeypatch):
    learner, seeds = small_learner(lr=0.01, minibatches=2, epochs=2), list[int]()
    minibatches = learner._minibatches

    def noted(rows: Any, seed: int) -> Any:
        seeds.append(seed)
        return minibatches(rows, seed)

    monkeypatch.setattr(learner, "_minibatches", noted)
    for update in range(2):
        learner.update(play(0, metas=2), entropy=0.0, update=update)
    assert len(set(seeds)) == 4, "two updates of two epochs"
