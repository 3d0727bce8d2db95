"""A packed batch equals the unpacked one: same logprobs, loss and gradient; no token twice."""

import doctest
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_toys import SMALL, batches, make_model, make_sample, prepend, starts
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.loss import add_up
from mage.learn.pack import packing
from mage.learn.pack.attention import IMPLEMENTATIONS, attending, forest_mask, hidden_states
from mage.learn.pack.layers import block_mask
from mage.learn.pack.packer import Packer, check_packable
from mage.learn.pack.packing import Layout, Shape, pack_forest
from mage.learn.pack.plans import plan_forests, plan_rows, plan_tries
from mage.learn.pack.tries import SplitCost, build_tree, common, prepare, split_tree
from mage.learn.token_logprobs import token_logprobs
from mage.types import Sample, TurnRef

TOLERANCE = 1e-9
MODELS = {kind: make_model(kind) for kind in ("llama", "qwen2", "qwen3")}


def loss_and_gradients(
    kind: str, samples: list[Sample], layout: Layout | None = None, **options: Any
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Loss sums, logprobs and the gradient of all weights, as the learner computes them."""
    model = MODELS[kind]
    learner = Learner(model, LearnOptions(kl=0.3, **options), temperature=0.8, layout=layout)
    with learner.trainable.reference() as reference_model:
        reference_model.load_state_dict(make_model(kind, seed=1).state_dict())
    rows = prepare(samples)
    reference = learner.logprobs(rows, reference=True)
    parts, _ = learner.accumulate(rows, entropy=0.2, reference=reference)
    sums = add_up(parts)
    used = [value.grad for value in model.parameters() if value.grad is not None]
    gradient = torch.cat([value.flatten() for value in used])
    model.zero_grad()
    loss = sums.policy + sums.kl + sums.action_entropy
    return loss, torch.cat((learner.logprobs(rows), reference)), gradient


def assert_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[0] == pytest.approx(other[0], abs=TOLERANCE)
    for k in (1, 2):
        torch.testing.assert_close(one[k], other[k], atol=TOLERANCE, rtol=0)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", MODELS)
@given(batch=batches, start=starts)
@settings(max_examples=8)
def test_packed_and_unpacked_agree_in_loss_and_gradient(kind, batch, start):
    samples = prepend(start, batch)
    assert_same(loss_and_gradients(kind, samples), loss_and_gradients(kind, samples, packed=False))


@pytest.mark.e2e
@pytest.mark.parametrize("through", ["one function", "modules"])
@pytest.mark.parametrize("kind", MODELS)
@given(batch=batches, start=starts, micro=st.integers(1, 200), recompute=st.booleans())
@settings(max_examples=6)
def test_a_trie_agrees_with_rows_in_loss_and_gradient(
    kind, through, batch, start, micro, recompute
):
    """`through`: our own layers, or the modules of transformers with FlexAttention."""
    samples = prepend(start, batch)
    with pytest.MonkeyPatch.context() as patch:
        if through == "modules":
            patch.setattr("mage.learn.pack.attention.is_plain", lambda model: False)
        found = loss_and_gradients(kind, samples, "trie", recompute=recompute, micro_tokens=micro)
    assert_same(found, loss_and_gradients(kind, samples, packed=False))


@given(
    end=st.lists(st.integers(1, 9), min_size=1, max_size=40), block=st.sampled_from([1, 2, 4, 8])
)
def test_blocks_of_the_mask_follow_the_rule(end, block):
    """A full block allows every pair, a block that is left out none."""
    ends = torch.tensor([min(start + length, len(end)) for start, length in enumerate(end)])
    mask = block_mask(ends, block)
    line = torch.arange(len(end))
    allowed = (line[None] <= line[:, None]) & (line[:, None] < ends[None])
    count = -(-len(end) // block)
    for row in range(count):
        some = set(mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].tolist())
        full = set(mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist())
        for column in range(count):
            part = allowed[row * block : (row + 1) * block, column * block : (column + 1) * block]
            assert column in some or column in full or not part.any()
            assert column not in full or (part.all() and column not in some)


@pytest.mark.e2e
@given(batch=batches, start=starts, micro=st.integers(1, 40), tree=st.none() | st.integers(1, 30))
@settings(max_examples=12)
def test_micro_batches_and_cuts_change_no_gradient(batch, start, micro, tree):
    samples = prepend(start, batch)
    whole = loss_and_gradients("llama", samples, micro_tokens=10_000, tree_tokens=10_000)
    assert_same(loss_and_gradients("llama", samples, micro_tokens=micro, tree_tokens=tree), whole)
    assert_same(loss_and_gradients("llama", samples, micro_tokens=micro, packed=False), whole)


@pytest.mark.parametrize("kind", MODELS)
@given(batch=batches)
@settings(max_examples=15)
def test_packed_logprobs_equal_a_plain_forward_of_each_row(kind, batch):
    model = MODELS[kind]
    packed = pack_forest([build_tree(prepare(batch))], dtype=torch.float64)
    with torch.no_grad(), attending(model, "forest"):
        hidden = hidden_states(model, packed)[packed.replies.parents]
        logprobs, _ = token_logprobs(hidden, model.lm_head, packed.replies.targets, temperature=1.0)
    plain = []
    for sample in batch:
        ids = torch.tensor([sample.prompt_ids + sample.reply_ids])
        with torch.no_grad():
            rows = model(input_ids=ids).logits[0].log_softmax(-1)
        plain += [
            rows[len(sample.prompt_ids) - 1 + place, token]
            for place, token in enumerate(sample.reply_ids)
        ]
    found = torch.empty(len(plain), dtype=torch.float64)
    found[packed.replies.index] = logprobs
    torch.testing.assert_close(found, torch.stack(plain), atol=TOLERANCE, rtol=0)


@given(batch=batches, start=starts)
def test_the_trie_holds_every_distinct_prefix_once(batch, start):
    rows = prepare(prepend(start, batch))
    prefixes = {tuple(row.ids[: length + 1]) for row in rows for length in range(len(row.ids))}
    tree = build_tree(rows)
    assert tree.size == len(prefixes)
    assert pack_forest([tree]).tokens == len(prefixes)


@given(batch=batches)
def test_a_query_sees_exactly_its_own_prefix(batch):
    """The keys that a reply's parent may see spell, in order, the text before the reply token."""
    packed = pack_forest([build_tree(prepare(batch))], dtype=torch.float64)
    assert packed.shape is not None
    assert packed.ends is not None
    root, ids = packed.shape.root, packed.input_ids[0].numpy()
    visible = np.tril(np.ones((len(ids), len(ids)), dtype=bool))
    if packed.shape.trees:
        visible[root:] = (
            forest_mask(packed.ends, packed.shape, repeats=1, dtype=torch.float64)[0, 0] == 0
        ).numpy()
    texts = {tuple(ids[visible[parent]]) for parent in packed.replies.parents.tolist()}
    expected = {
        one.prompt_ids + one.reply_ids[:place]
        for one in batch
        for place in range(len(one.reply_ids))
    }
    assert texts == expected
    assert all(
        packed.positions[0, place] == visible[place].sum() - 1 for place in packed.replies.parents
    )


def test_two_turns_and_their_mask_worked_by_hand():
    """Rules 9 9; turn 1: prompt 9 9 1, reply 5; turn 2: prompt 9 9 1 5 2, reply 6.

    Reflection: prompt 9 9 3, reply 4. In order: 9 9 | 1 5 2 6 | 3 4. The root is 9 9; 1 5 2 6 is
    one branch and 3 4 another.
    """
    turns = [
        make_sample((9, 9, 1), (5,)),
        make_sample((9, 9, 1, 5, 2), (6,), choices=((0, (6, 7, 8)),)),
        make_sample((9, 9, 3), (4,), kind="reflect"),
    ]
    packed = pack_forest([build_tree(prepare(turns))])
    assert packed.ends is not None
    assert packed.shape == Shape(root=2, trees=1, width=6)
    assert packed.input_ids.tolist() == [[9, 9, 1, 5, 2, 6, 3, 4]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 5, 2, 3]]
    assert packed.ends.tolist() == [[4, 4, 4, 4, 6, 6]]
    assert packed.replies.parents.tolist() == [2, 4, 6]
    assert packed.replies.targets.tolist() == [5, 6, 4]
    assert packed.replies.on_reflection.tolist() == [False, False, True]
    assert packed.replies.choice_parents.tolist() == [4]
    assert packed.replies.choice_tokens.tolist() == [[6, 7, 8]]
    mask = forest_mask(packed.ends, packed.shape, repeats=2, dtype=torch.float32)[0, 0] == 0
    assert mask[::2].tolist() == mask[1::2].tolist(), "heads that share keys see the same"
    assert ["".join("x" if open_ else "." for open_ in line) for line in mask[::2].tolist()] == [
        "xxx.....",
        "xxxx....",
        "xxxxx...",
        "xxxxxx..",
        "xx....x.",
        "xx....xx",
    ]


def test_the_example_in_the_documentation_holds():
    found = doctest.testmod(packing)
    assert (found.failed, found.attempted > 0) == (0, True)


@given(batch=batches, start=starts)
def test_the_deepest_branch_comes_first_and_nothing_else_changes(batch, start):
    rows = prepare(prepend(start, batch))
    plain, deep = build_tree(rows), build_tree(rows, deepest_first=True)
    assert deep.size == plain.size
    assert sorted(map(id, deep.rows)) == sorted(map(id, plain.rows))
    assert deep.shared[1:] == tuple(common(one, other) for one, other in pairwise(deep.rows))
    assert len(deep.rows[0].ids) == max(len(row.ids) for row in rows)


def test_an_episode_with_a_thousand_turns_is_packed():
    """Every turn forks from the trunk of the next one: a thousand forks, one below the other."""
    turns = [Sample.to_score((1, *(2, 3) * turn), (4,)) for turn in range(1000)]
    tree = build_tree(prepare(turns), deepest_first=True)
    assert tree.rows[0].sample == turns[-1], "the longest row comes first"
    assert tree.size == 1 + 2 * 999 + 1000
    parts = split_tree(tree, SplitCost(root=0, pairs_per_token=100.0, limit=None))
    assert sorted(row.offset for part in parts for row in part.rows) == list(range(1000))


def test_duplicates_and_a_single_sample_are_only_root():
    twice = [make_sample((1, 2), (3,), advantage=advantage) for advantage in (1.0, -1.0)]
    packed = pack_forest([build_tree(prepare(twice))])
    assert packed.shape == Shape(root=3, trees=0, width=0)
    assert packed.replies.parents.tolist() == [1, 1]
    assert packed.replies.advantages.tolist() == [1.0, -1.0]


@given(batch=batches, limit=st.integers(1, 20))
def test_cutting_keeps_every_row_once_and_obeys_the_limit(batch, limit):
    rows = prepare(batch)
    parts = split_tree(build_tree(rows), SplitCost(root=0, pairs_per_token=0, limit=limit))
    assert sorted(row.offset for part in parts for row in part.rows) == [row.offset for row in rows]
    assert all(part.size <= limit or len(part.rows) == 1 for part in parts)
    for part in parts:
        again = build_tree(part.rows)
        assert (part.size, part.shared) == (again.size, again.shared)


def test_a_tree_is_cut_where_attention_saves_more_than_the_trunk_costs():
    """Two branches of 100 tokens on a trunk of 10.

    Apart they cost 2 x 110 (e + 110), together 210 (e + 210); both are equal at e = 1990.
    """
    rows = prepare([make_sample((7,) * 10 + (branch,) * 99, (branch,)) for branch in (1, 2)])
    for pairs, parts in ((1980, 2), (2000, 1)):
        cost = SplitCost(root=0, pairs_per_token=pairs, limit=None)
        assert len(split_tree(build_tree(rows), cost)) == parts


def test_plans_keep_micro_batches_within_their_tokens():
    members = [(group, member) for group in range(5) for member in range(6)]
    rows = prepare(
        make_sample((0,) * 20 + one, (1,) * (1 + one[1]), where=TurnRef(n % 5, n, 0, 0, ""))
        for n, one in enumerate(members)
    )
    forests = [*map(pack_forest, plan_forests(rows, micro_tokens=60, pairs_per_token=660))]
    assert len(forests) > 1
    assert all(packed.input_ids.numel() <= 60 for packed in forests)
    found = sorted(index for packed in forests for index in packed.replies.index.tolist())
    assert found == list(range(sum(len(row.sample.reply_ids) for row in rows)))
    assert all(len(batch) * len(batch[0].ids) <= 60 for batch in plan_rows(rows, micro_tokens=60))


def test_rows_longer_than_two_thousand_tokens_share_their_trunk():
    """An episode of ten turns with a prompt of 2,000 tokens, 100 more per turn, replies of 256.

    Trunk 2,900 and ten replies: 5,460 tokens. Apart they are 10 x 2,706 = 27,060 tokens.
    """
    rng = np.random.default_rng(0)
    trunk = tuple(rng.integers(0, 7, 3000).tolist())
    rows = prepare(
        make_sample(trunk[: 2000 + 100 * turn], (turn % 7, *rng.integers(0, 7, 255).tolist()))
        for turn in range(10)
    )
    batches = plan_tries(rows, micro_tokens=16_384, pairs_per_token=8192)
    together = sum(tree.size for batch in batches for tree in batch)
    assert together <= 2900 + 10 * 256
    cut = plan_tries(rows, micro_tokens=16_384, pairs_per_token=8192, tree_tokens=2048)
    assert sum(tree.size for batch in cut for tree in batch) > 25_000


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (make_sample((), (1,)), "at least one prompt token"),
        (make_sample((1,), ()), "at least one prompt token"),
        (make_sample((1,), (1, 2), old_logprobs=(-1.0,)), "2 reply tokens but 1 old logprobs"),
        (make_sample((1,), (1, 2), choices=((2, (1, 3)),)), "a place must be 0 to 1"),
        (make_sample((1,), (1, 2), choices=((1, (3,)),)), "at least two tokens"),
    ],
)
def test_a_malformed_sample_is_refused(sample, message):
    with pytest.raises(ValueError, match=message):
        prepare([sample])


def test_windows_or_an_attention_of_its_own_cannot_be_packed(monkeypatch):
    model = make_model("qwen3", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ValueError, match=r"learn\.packed = false"):
        check_packable(model)
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None))
    monkeypatch.setattr(model, "_supports_attention_backend", False)
    with pytest.raises(ValueError, match="without the attention interface of transformers"):
        check_packable(model)


@pytest.mark.parametrize(
    ("limit", "layout"), [("window", "forest"), ("positions", "forest"), ("positions", "rows")]
)
def test_a_row_longer_than_a_window_or_fixed_positions_is_refused(limit, layout):
    """Rows of one batch would all get the positions of the longest."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "factor": 4.0, "rope_theta": 1e4, **factors}
    rope["original_max_position_embeddings"] = 8
    model = (
        MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8))
        if limit == "window"
        else LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=rope))
    )
    pack = Packer(model.eval(), layout, 64)
    assert list(pack(prepare([make_sample((1,) * 4, (1, 2))])))
    with pytest.raises(UserError, match=r"a row has 9: set engines\.context to 8"):
        pack(prepare([make_sample((1,) * 7, (1, 2))]))


def test_the_attention_is_switched_back_even_after_an_error():
    model = MODELS["llama"]
    before = model.config._attn_implementation
    with attending(model, "forest"):
        assert model.config._attn_implementation == IMPLEMENTATIONS["forest"]
    with pytest.raises(TypeError, match="forest"), attending(model, "forest"):
        model(input_ids=torch.tensor([[1, 2]]))  # fails: this attention needs the forest
    assert model.config._attn_implementation == before
