"""The loss against values worked by hand: every branch of the clip, KL, bonus and weights."""

import math
import os
from importlib import import_module
from typing import Any

import pytest
import torch
from learn_toys import make_sample

from mage.config.sections import LearnOptions
from mage.learn.loss import Scores, Sums, add_up, low_variance_kl, policy_loss, policy_objective
from mage.learn.pack.packing import ReplyTokens, pack_rows
from mage.learn.pack.tries import prepare
from mage.learn.token_logprobs import (
    LOGITS_AT_ONCE,
    _score_with_slopes,
    _ScoredWithSlopes,
    choice_entropies,
    token_logprobs,
)
from mage.types import Sample

LN2 = math.log(2)


def replies_of(*samples: Sample) -> ReplyTokens:
    return pack_rows(prepare(samples), dtype=torch.float64).replies


def loss_of(
    logprobs: list[float],
    replies: ReplyTokens,
    *,
    entropies: list[float] | None = None,
    choices: tuple[float, ...] = (),
    **changes: Any,
) -> tuple[float, Sums]:
    """The loss; the keyword argument `kl` goes to LearnOptions."""
    options = LearnOptions(kl=changes.pop("kl", 0.0))
    given = {"entropy": 0.0, "normaliser": len(replies)} | changes
    numbers = (logprobs, entropies or [0.0] * len(replies), choices)
    scores = Scores(*(torch.tensor(values, dtype=torch.float64) for values in numbers))
    loss, sums = policy_loss(scores, replies, options, **given)
    return float(loss), add_up([sums])


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "cut"),
    [
        (1.0, 2.0, 2.0, False),  # no change: r A
        (1.1, 2.0, 2.2, False),  # inside the range: r A
        (1.5, 2.0, 2.4, True),  # good action, already more likely: limited to 1.2 A
        (0.5, 2.0, 1.0, False),  # good action, became unlikely: full gradient
        (0.5, -2.0, -1.6, True),  # bad action, already less likely: limited to 0.8 A
        (0.9, -2.0, -1.8, False),
        (1.5, -2.0, -3.0, False),  # bad action, became more likely: full gradient
        (2.9, -2.0, -5.8, False),  # just below the dual clip
        (5.0, -2.0, -6.0, True),  # the dual clip: at most 3 A
        (5.0, 2.0, 2.4, True),  # the dual clip does not affect positive advantages
        (1.5, 0.0, 0.0, False),
    ],
)
def test_the_clip_in_each_of_its_branches(ratio, advantage, objective, cut):
    r = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    found, was_cut = policy_objective(
        r, torch.tensor([advantage], dtype=torch.float64), LearnOptions()
    )
    found.sum().backward()
    assert found.item() == pytest.approx(objective)
    assert was_cut.item() is cut
    assert r.grad is not None
    assert r.grad.item() == pytest.approx(0.0 if cut else advantage), "what is cut has no gradient"


def test_the_dual_clip_can_be_off():
    ratio, advantages = torch.tensor([2.0, 0.5, 9.0]), torch.tensor([1.0, -1.0, -1.0])
    found, _ = policy_objective(ratio, advantages, LearnOptions(clip=0.2, dual_clip=None))
    assert found.tolist() == pytest.approx([1.2, -0.8, -9.0])


def test_the_policy_loss_is_a_mean_over_all_reply_tokens():
    """Ratios 1, 1.1 with A = 2 and ratio 1 with A = -1: -(2 + 2.2 - 1) / 3."""
    replies = replies_of(
        make_sample((1,), (2, 3), advantage=2.0, old_logprobs=(-1.0, -1.0)),
        make_sample((1,), (4,), advantage=-1.0),
    )
    loss, sums = loss_of([-1.0, -1.0 + math.log(1.1), -1.5], replies)
    assert loss == pytest.approx(-3.2 / 3)
    assert (sums.tokens, sums.ratio, sums.ratio_max) == pytest.approx((3, 3.1, 1.1))
    assert sums.mismatch == pytest.approx(math.log(1.1))
    assert sums.approx_kl == pytest.approx(0.1 - math.log(1.1))
    assert sums.clipped == 0


def test_the_kl_is_e_to_the_d_minus_d_minus_one():
    """Reference twice as likely: d = ln 2, so 2 - ln 2 - 1; half as likely: 0.5 + ln 2 - 1."""
    reference = torch.tensor([-1.0 + LN2, -1.0 - LN2, -1.0])
    found = low_variance_kl(torch.tensor([-1.0, -1.0, -1.0]), reference)
    assert found.tolist() == pytest.approx([1 - LN2, LN2 - 0.5, 0.0])
    replies = replies_of(make_sample((1,), (2,), advantage=0.0))
    reference = torch.tensor([-1.5 + LN2], dtype=torch.float64)
    loss, sums = loss_of([-1.5], replies, kl=0.1, reference=reference)
    assert loss == pytest.approx(0.1 * (1 - LN2))
    assert sums.kl == pytest.approx(1 - LN2)


def test_the_bonus_counts_choices_and_nothing_else():
    """Two choices with entropies 0.25 and 0.5, and a reflection: 0.4 x 0.75 over 5 reply tokens."""
    replies = replies_of(
        make_sample((1,), (2, 3, 4), advantage=0.0, choices=((1, (3, 5)), (2, (4, 6)))),
        make_sample((1,), (5, 6), advantage=0.0, kind="reflect"),
    )
    loss, sums = loss_of(
        [-1.5] * 5, replies, entropies=[4.0, 0.25, 8.0, 1.0, 3.0], choices=(0.25, 0.5), entropy=0.4
    )
    assert loss == pytest.approx(-0.4 * 0.75 / 5)
    assert (sums.action_entropy, sums.reflect_entropy) == pytest.approx((0.75, 4.0))
    assert (sums.plays, sums.reflection_tokens) == (1, 2)


def test_the_entropy_among_legal_moves_worked_by_hand():
    """Logits 0, ln 9, 99 at temperature 2: among the first two, probabilities 1/4 and 3/4."""
    head = torch.nn.Linear(1, 3, dtype=torch.float64)
    head.weight.data = torch.tensor([[0.0], [math.log(9)], [90.0]], dtype=torch.float64)
    head.bias.data = torch.tensor([0.0, 0.0, 9.0], dtype=torch.float64)
    hidden = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    found = choice_entropies(hidden, head, torch.tensor([[0, 1, -1], [0, 1, 2]]), temperature=2.0)
    assert found.tolist() == pytest.approx([0.25 * math.log(4) + 0.75 * math.log(4 / 3), 0.0])
    found.sum().backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()
    assert hidden.grad[0].item() != 0
    replies = replies_of(make_sample((1,), (2,), kind="reflect"))  # without a choice
    hidden = torch.ones(len(replies.choice_parents), 1, dtype=torch.float64, requires_grad=True)
    assert choice_entropies(hidden, head, replies.choice_tokens, temperature=1.0).sum().item() == 0


def test_an_extreme_ratio_gives_a_finite_gradient():
    replies = replies_of(make_sample((1,), (2, 3), advantage=-1.0, old_logprobs=(-900.0, -0.0)))
    logprobs = torch.tensor([-0.1, -900.0], dtype=torch.float64, requires_grad=True)
    scores, options = Scores(logprobs, torch.zeros(2), torch.zeros(0)), LearnOptions(kl=1.0)
    given = {"entropy": 0.0, "normaliser": 2, "reference": torch.zeros(2)}
    policy_loss(scores, replies, options, **given)[0].backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_logprobs_and_entropy_at_a_temperature_worked_by_hand():
    """Logits 0 and ln 9 at temperature 2 are 0 and ln 3: probabilities 1/4 and 3/4."""
    head, hidden = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64), torch.ones(2, 1).double()
    head.weight.data = torch.tensor([[0.0], [math.log(9)]], dtype=torch.float64)
    logprobs, entropies = token_logprobs(hidden, head, torch.tensor([0, 1]), temperature=2.0)
    assert logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert entropies.tolist() == pytest.approx([0.25 * math.log(4) + 0.75 * math.log(4 / 3)] * 2)


def test_sums_of_micro_batches_add_up_and_keep_the_largest_ratio():
    replies, values = replies_of(make_sample((1, 2), (3,))), torch.tensor([-1.0]).double()
    scores = [Scores(values - shift, values, values) for shift in (0.0, 0.5)]
    readings = [
        policy_loss(one, replies, LearnOptions(), entropy=0.1, normaliser=2)[1] for one in scores
    ]
    assert add_up(readings) == add_up(readings[:1]) + add_up(readings[1:])
    assert add_up([]) == Sums()
    added = Sums(tokens=2, policy=1.0, ratio_max=3.0) + Sums(tokens=3, policy=-0.5, ratio_max=2.0)
    assert added == Sums(tokens=5, policy=0.5, ratio_max=3.0)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("at_once", [10_000, 18])
def test_values_and_gradients_of_tokens_are_exact_also_in_pieces(at_once, learns, monkeypatch):
    """`at_once = 18` computes logits in pieces, with the gradient that is used on a GPU."""
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 9, dtype=torch.float64)
    hidden = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets, inputs = torch.randint(0, 9, (7,)), (hidden, head.weight, head.bias)
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", at_once)
    found = token_logprobs(hidden, head, targets, temperature=0.7, entropy_learns=learns)
    plain = torch.log_softmax(head(hidden) / 0.7, -1)
    wanted = (plain.gather(1, targets[:, None])[:, 0], -(plain.exp() * plain).sum(-1))
    weight = 3 if learns else 0
    slopes = [torch.autograd.grad(a.sum() + weight * b.sum(), inputs) for a, b in (found, wanted)]
    for own, other in zip((*found, *slopes[0]), (*wanted, *slopes[1]), strict=True):
        torch.testing.assert_close(own, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_head_gives_exact_gradients_with_the_logits_computed_once(bias):
    """The way that a GPU takes for LoRA, in pieces of two tokens and with a weight per token."""
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 9, bias=bias, dtype=torch.float64).requires_grad_(False)
    hidden = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(0, 9, (7,)), torch.randn(7, dtype=torch.float64)
    found = _ScoredWithSlopes.apply(hidden, head.weight, head.bias, targets, 0.7, 2)
    plain = torch.log_softmax(head(hidden) / 0.7, -1)
    wanted = (plain.gather(1, targets[:, None])[:, 0], -(plain.exp() * plain).sum(-1))
    slopes = [torch.autograd.grad((one[0] * weights).sum(), hidden) for one in (found, wanted)]
    for own, other in zip((*found, *slopes[0]), (*wanted, *slopes[1]), strict=True):
        torch.testing.assert_close(own, other, atol=1e-12, rtol=0)


def compare_head(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """The kernel against the plain function; vocabularies that do not divide into its parts."""
    kernel = import_module("mage.learn.head_kernel").score_with_slopes
    generator = torch.Generator().manual_seed(0)
    for words in (9, 4096, 12_000):
        logits = 3 * torch.randn(6, words, generator=generator)
        logits[0, 0] = 60.0  # a distribution with one word
        logits, targets = logits.to(device, dtype), torch.arange(6, device=device)
        found, wanted = logits.clone(), logits.clone()
        values = kernel(found, targets, 0.7), _score_with_slopes(wanted, targets, 0.7)
        for own, other in zip(*values, strict=True):
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
def test_the_interpreted_kernel_of_the_head_computes_what_the_plain_version_does():
    pytest.importorskip("triton")
    compare_head("cpu", torch.float32, 1e-5)


def test_the_token_entropy_lowers_the_loss_by_its_mean():
    replies = replies_of(make_sample((1,), (2, 3)))
    scores = Scores(torch.zeros(2), torch.tensor([1.0, 3.0]), torch.zeros(0))
    losses = [
        policy_loss(scores, replies, LearnOptions(token_entropy=weight), entropy=0, normaliser=2)[0]
        for weight in (0.0, 0.1)
    ]
    assert float(losses[0] - losses[1]) == pytest.approx(0.1 * 2.0)
