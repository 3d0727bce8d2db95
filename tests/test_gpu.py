"""Tests that need CUDA: kernels equal their plain versions, graphs use the current weights,
a trie equals its rows with and without gradients, LoRA's direct gradients are the projected,
keys and values in 8 bits are near those in the model's format, and drafts change no reply.

pytest -m gpu tests/test_gpu.py
"""

import copy
import gc
from importlib import import_module
from typing import Any

import int8_toys
import pytest
import test_drafts
import test_learner
import test_loss
import test_products
import torch
from int8_toys import KINDS, answer
from learn_toys import make_model, make_sample
from test_move_probabilities import played
from transformers import PreTrainedModel

from mage.agent.chat import Chat
from mage.config.sections import LearnOptions
from mage.engines.gpu import reference_ops as ops
from mage.engines.gpu.state import Blocks, DeviceState
from mage.engines.local import LocalEngine
from mage.learn.adapters import Adapters
from mage.learn.imitate import supervised
from mage.learn.imitate.supervised import reply_logprobs
from mage.learn.learner import Learner
from mage.learn.move_probabilities import move_probabilities
from mage.learn.pack.packing import Packed
from mage.learn.pack.tries import prepare
from mage.models.base import find_model
from mage.types import Completion, Request, Sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
DEVICE = torch.device("cuda")
SHAPES = [(9, 3, 64, 576, False), (4, 2, 16, 64, True), (8, 8, 32, 256, False)]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


@pytest.fixture(scope="module")
def kernels():
    return import_module("mage.engines.gpu.kernels")


@pytest.fixture(autouse=True)
def exact_products():
    torch.backends.cuda.matmul.allow_tf32 = False


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=TOLERANCE[one.dtype], rtol=TOLERANCE[one.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_compute_what_the_plain_versions_do(kernels, shape, dtype):
    """`shape`: heads, heads of keys and values, head size, width, normed heads."""
    torch.manual_seed(0)
    heads, kv_heads, size, width, normed = shape

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE).to(dtype)

    def whole(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, device=DEVICE)

    hidden, weight, wide = draw(7, width), draw(width), draw(5, 2 * width)
    close(kernels.rms_norm(hidden, weight, 1e-5), ops.rms_norm(hidden, weight, 1e-5))
    close(kernels.gated(wide), ops.gated(wide))
    keys, values = draw(7, 200, kv_heads, size), draw(7, 200, kv_heads, size)
    caches = [(keys.clone(), values.clone()) for _ in range(2)]
    rope, norms = (draw(200, size), draw(200, size)), (draw(size), draw(size)) if normed else None
    together = draw(4, heads + 2 * kv_heads, size)
    slots, positions = whole(1, 3, 0, 6), whole(5, 100, 0, 7)
    found = [
        side.rotate_and_store(together, heads, rope, norms, 1e-6, slots, positions, *cache)
        for side, cache in zip((kernels, ops), caches, strict=True)
    ]
    for one, other in zip((found[0], *caches[0]), (found[1], *caches[1]), strict=True):
        close(one, other)
    filled = whole(0, 5, 64, 100, 150, 199, 0)
    for count, shared in ((6, whole(0, 0)), (600, whole(0, 0)), (2, whole(4, 128))):
        query = draw(count, heads, size)
        whose = torch.randint(4 if shared[1] else 0, 6, (count,), device=DEVICE)
        given = (query, keys, values, whose, filled, shared, size**-0.5)
        close(kernels.attend_decode(*given), ops.attend_decode(*given))
    starts, counts = whole(0, 16, 20, 29, 0), whole(16, 4, 9, -11, 0)
    blocks = Blocks(starts, counts, whole(2, 2, 4, 0, 0), whole(50, 66, 0, 0, 0), 16)
    given = (draw(40, heads, size), keys, values, blocks, size**-0.5)
    close(kernels.attend_blocks(*given), ops.attend_blocks(*given))


def test_the_sampling_kernel_draws_the_same_tokens(kernels):
    torch.manual_seed(0)
    logits = torch.randn(256, 20_000, device=DEVICE) * 3
    slots = torch.arange(256, device=DEVICE)
    slots[-1] = 256
    answers = []
    for side in (kernels, ops):
        state = DeviceState.make(256, DEVICE)
        state.seed.copy_(torch.arange(257) * 7919 - 300)
        state.temperature[:128], state.temperature[3] = 0.7, 0.0
        answers.append(torch.zeros(2, 256, dtype=torch.int32, device=DEVICE))
        side.choose(logits, slots, state, answers[-1], True)
        assert state.filled.tolist() == [1] * 255 + [0, 0]
    same = answers[0][0] == answers[1][0]
    assert same.sum() >= 255, "rounding may move one draw over the border of two tokens"
    torch.testing.assert_close(
        answers[0][1].view(torch.float32)[same],
        answers[1][1].view(torch.float32)[same],
        atol=1e-4,
        rtol=0,
    )


def test_a_row_of_nan_gets_a_token_of_the_vocabulary(kernels):
    logits = torch.full((4, 20_001), torch.nan, device=DEVICE)
    state = DeviceState.make(4, DEVICE)
    state.temperature[:2] = 0.0
    answers = torch.full((2, 4), -1, dtype=torch.int32, device=DEVICE)
    kernels.choose(logits, torch.arange(4, device=DEVICE), state, answers, True)
    assert all(0 <= token < 20_001 for token in answers[0].tolist())


def make_pair(kind: str, **changes: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same weights on the CPU and on the device."""
    config, build = KINDS[kind]
    torch.manual_seed(0)
    shape = {
        **{"vocab_size": 600, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"max_position_embeddings": 512, "initializer_range": 0.2},
    }
    model = build(config(**shape, **changes)).eval()
    other = build(model.config).eval()
    other.load_state_dict(model.state_dict())
    return model, other.to(DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_gives_the_replies_of_the_cpu_also_after_a_change_of_weights(kind):
    chat = Chat.load(find_model("embedded"))
    models = make_pair(kind)
    engines = [LocalEngine(model, chat, slots=24, context=256, drafts=0) for model in models]
    assert (engines[0].loop, engines[1].loop is None) == (None, False)
    generator = torch.Generator().manual_seed(1)
    for version in range(4):
        prompts = [
            tuple(torch.randint(5, 500, (int(length),), generator=generator).tolist())
            for length in torch.randint(1, 90, (40,), generator=generator)
        ]
        requests = [
            Request(prompt, 1 + number % 20, number, temperature=number % 3 / 2)
            for number, prompt in enumerate(prompts)
        ]
        ours, theirs = (answer(engine, requests) for engine in engines)
        differing = sum(
            one.token_ids != other.token_ids for one, other in zip(ours, theirs, strict=True)
        )
        assert differing <= 2, "a draw at the border of two tokens may fall either way"
        for one, other in zip(ours, theirs, strict=True):
            if one.token_ids == other.token_ids:
                assert one.logprobs == pytest.approx(other.logprobs, abs=2e-3)
        with torch.no_grad():
            for model in models:
                for parameter in model.parameters():
                    parameter.mul_(1.01)
        for engine in engines:
            engine.refresh(version + 1)
    assert any(graph for graph in engines[1].loop.graphs.values()), (
        "steps were replayed from graphs"
    )  # type: ignore[union-attr]


def test_graphs_work_after_another_engine_is_deleted_and_workspaces_are_cleared():
    chat = Chat.load(find_model("embedded"))
    model = make_pair("llama")[1].to(torch.bfloat16)
    requests = [Request(tuple(range(5, 60 + number)), 20, number) for number in range(48)]

    def begin() -> tuple[LocalEngine, list[Completion]]:
        engine = LocalEngine(model, chat, slots=64, context=256, drafts=0)
        for version in range(3):  # computed, recorded, replayed
            engine.refresh(version)
            replies = answer(engine, requests)
        return engine, replies

    gone = begin()[0].loop.memory  # type: ignore[union-attr]
    engine, replies = begin()
    gc.collect()
    torch.cuda.empty_cache()
    assert gone not in {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}, (
        "what is gone leaves nothing behind"
    )
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile does when it records a graph
    torch.cuda.empty_cache()
    engine.refresh(3)
    assert [reply.token_ids for reply in answer(engine, requests)] == [
        reply.token_ids for reply in replies
    ]


def test_the_kernels_of_drafts_compute_what_the_plain_versions_do(kernels):
    test_drafts.compare_kernels(kernels, "cuda")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafts", [1, 4])
def test_drafts_change_no_reply(kind, drafts, monkeypatch):
    """The CPU without drafts, the GPU without and with them; prompts repeat themselves."""
    monkeypatch.setattr("mage.engines.drafts.PAYS", 0)
    chat = Chat.load(find_model("embedded"))
    ours, theirs = make_pair(kind)
    engines = [
        LocalEngine(ours, chat, slots=24, context=192),
        LocalEngine(theirs, chat, slots=24, context=192, drafts=0),
        LocalEngine(theirs, chat, slots=24, context=192, drafts=drafts),
    ]
    generator = torch.Generator().manual_seed(1)
    for version in range(4):
        prompts = [
            tuple(torch.randint(5, 9, (int(length),), generator=generator).tolist()) * 2
            for length in torch.randint(1, 80, (40,), generator=generator)
        ]
        requests = [
            Request(
                prompt,
                1 + number,
                number,
                temperature=number % 3 / 4,
                top_p=0.9 if version == 3 and number % 5 == 0 else 1.0,
            )
            for number, prompt in enumerate(prompts)
        ]
        for engine in engines:
            engine.refresh(version)
        first, *others = [answer(engine, requests) for engine in engines]
        for replies in others:
            same = [
                (one, other)
                for one, other in zip(first, replies, strict=True)
                if (one.token_ids, one.finish) == (other.token_ids, other.finish)
            ]
            assert len(same) >= 38, "a draw at the border of two tokens may fall either way"
            for one, other in same:
                assert one.logprobs == pytest.approx(other.logprobs, abs=2e-3)
    stats, loop = engines[2].stats, engines[2].loop
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.steps < engines[1].stats.steps
    assert loop is not None
    assert any(
        graph for key, graph in loop.graphs.items() if key[:1] + key[2:3] == ("decode", drafts + 1)
    )


@pytest.mark.parametrize("cache", ["model", "int8"])
def test_drafts_work_in_bfloat16_and_in_8_bits(cache, monkeypatch):
    """Rounding may part two replies; what they have in common has nearly the same logprobs."""
    int8_toys.allow_small_models(monkeypatch)
    monkeypatch.setattr("mage.engines.drafts.PAYS", 0)
    model = int8_toys.make_model("qwen2", "cuda", torch.bfloat16)
    requests = [
        Request(request.prompt_ids * 2, 24, request.seed, 0.5)
        for request in int8_toys.make_requests((64, 200), 12, 10)
    ]
    engines = [int8_toys.make_engine(model, cache, drafts=drafts) for drafts in (0, 3)]
    for _ in range(3):  # computed, recorded, replayed; later replies are drafted from the first
        plain, drafted = (answer(engine, requests) for engine in engines)
        assert all(gap < 0.1 for gap in int8_toys.mean_gaps(plain, drafted, 12))
    stats = engines[1].stats
    assert 0.1 * stats.drafted_tokens < stats.accepted_tokens < stats.drafted_tokens


def test_small_models_draft_by_default():
    chat = Chat.load(find_model("embedded"))
    assert LocalEngine(make_pair("llama")[1], chat, slots=4, context=64).drafts.number == 4


def make_samples() -> list[Sample]:
    """80 samples that share prefixes of 150 to 310 tokens."""
    generator = torch.Generator().manual_seed(0)
    rules = tuple(torch.randint(0, 7, (150,), generator=generator).tolist())
    samples: list[Sample] = []
    for _ in range(40):
        middle, reply = (
            tuple(torch.randint(0, 7, (int(n),), generator=generator).tolist())
            for n in torch.randint(1, 80, (2,), generator=generator)
        )
        samples += [
            make_sample(rules + middle, reply),
            make_sample(rules + middle + reply + (1, 2), reply[:5], advantage=-1.0),
        ]
    return samples


def make_small(kind: str) -> PreTrainedModel:
    return make_model(kind, exact=False, head_dim=16, max_position_embeddings=512).to(DEVICE)


@pytest.mark.parametrize(
    "options",
    [{}, {"recompute": True}, {"lora_rank": 4}],
    ids=["all weights", "recomputed", "adapters"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_trie_has_the_logprobs_and_gradients_of_its_rows(kind, options):
    samples = make_samples()
    found = []
    for layout in ("rows", "trie"):
        given = LearnOptions(micro_tokens=2048, **options)
        learner = Learner(make_small(kind), given, layout=layout)
        rows = prepare(samples)
        learner.accumulate(rows, entropy=0.1)
        gradients = [value.grad for value in learner.trainable.masters.values()]
        gradient = torch.cat([one.flatten() for one in gradients if one is not None])
        found.append((learner.logprobs(rows), gradient))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-4, rtol=0)
    assert (found[0][1] - found[1][1]).norm() <= 1e-4 * found[0][1].norm()


@pytest.mark.parametrize(
    "options",
    [{}, {"lora_rank": 4}, {"lora_rank": 4, "graphs": True}],
    ids=["all weights", "adapters", "recorded"],
)
def test_the_host_does_not_wait_for_optimizer_steps(options):
    learner = Learner(make_small("llama"), LearnOptions(micro_tokens=2048, **options))
    samples = make_samples()
    for update in range(2):  # compiles, records
        learner.update(samples, entropy=0.1, update=update)
    rows = prepare(samples)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            learner.accumulate(rows, entropy=0.1)
            learner._step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_recorded_layers_learn_what_plain_layers_do(kind):
    """Graphs of several lengths, also after the engine has moved the weights."""
    trained = []
    for graphs in (False, True):
        model = make_small(kind)
        options = LearnOptions(micro_tokens=2048, lora_rank=4, minibatches=2, graphs=graphs)
        learner = Learner(model, options)
        for update in range(4):
            if update == 2:
                LocalEngine(model, Chat.load(find_model("embedded")), slots=2, context=64)
            learner.update(make_samples(), entropy=0.1, update=update)
        assert (learner.trainable.graphs is not None) == graphs
        trained.append(learner.trainable.masters)
        if learner.trainable.graphs is not None:
            assert any(learner.trainable.graphs._pairs.values()), "something was recorded"
    for name, plain in trained[0].items():
        torch.testing.assert_close(trained[1][name], plain, atol=1e-6, rtol=1e-5)


@pytest.fixture
def packed_layouts(monkeypatch):
    """The layouts that `reply_logprobs` computes, in order; it must compute without gradients."""
    seen: list[str] = []
    compute = supervised.hidden_states

    def noted(model: PreTrainedModel, packed: Packed) -> torch.Tensor:
        seen.append(packed.layout)
        hidden = compute(model, packed)
        assert not hidden.requires_grad
        return hidden

    monkeypatch.setattr(supervised, "hidden_states", noted)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_trie_without_gradients_has_the_reply_logprobs_of_its_rows(kind, packed_layouts):
    """A reply has up to 79 tokens; their float32 errors add up to less than 2e-3."""
    model, samples = make_small(kind), make_samples()
    rows, trie = (
        reply_logprobs(model, samples, temperature=0.8, micro_tokens=2048, layout=layout)
        for layout in ("rows", "trie")
    )
    assert set(packed_layouts) == {"rows", "trie"}
    assert trie == pytest.approx(rows, abs=2e-3)


def test_move_probabilities_of_a_trie_are_those_of_its_rows(packed_layouts):
    """Tic-Tac-Toe, played on the CPU by the embedded model and scored on the device."""
    parts, metas = played()
    model, agent = copy.deepcopy(parts.weights()).to(DEVICE), parts.agent(False)
    rows, trie = (
        move_probabilities(model, agent, metas, LearnOptions(packed=packed, micro_tokens=4096))
        for packed in (False, True)
    )
    assert set(packed_layouts) == {"rows", "trie"}
    assert len(trie) > 20
    for one, other in zip(rows, trie, strict=True):
        assert dict(other.moves) == pytest.approx(dict(one.moves), abs=1e-4)
        assert other.legal == pytest.approx(one.legal, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        ("llama", torch.float32, 1e-3),
        ("qwen3", torch.float32, 1e-3),
        ("llama", torch.bfloat16, 0.15),
    ],
)
def test_adapters_get_in_a_trie_the_gradient_that_is_projected_in_rows(
    kind, dtype, tolerance, monkeypatch
):
    """Every A and B; the tolerance is relative to the norm of its gradient. B is not zero.

    On a CPU the largest difference is 4e-7 in float32 and 3e-2 in bfloat16.
    """
    projects: list[bool] = []
    add_gradient = Adapters.add_gradient

    def noted(trainable: Adapters) -> None:
        weights = trainable.model.parameters()
        projects.append(any(weight.grad is not None for weight in weights))
        add_gradient(trainable)

    monkeypatch.setattr(Adapters, "add_gradient", noted)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for layout in ("rows", "trie"):
        projects.clear()
        options = LearnOptions(micro_tokens=2048, lora_rank=4)
        learner = Learner(make_small(kind).to(dtype), options, layout=layout)
        masters, generator = learner.trainable.masters, torch.Generator().manual_seed(1)
        with torch.no_grad():
            for master in masters.values():
                master.copy_(0.1 * torch.randn(master.shape, generator=generator))
        learner.trainable.write_to_model()
        learner.accumulate(prepare(make_samples()), entropy=0.1)
        assert set(projects) == {layout == "rows"}
        found[layout] = {name: master.grad for name, master in masters.items()}
    for name, gradient in found["rows"].items():
        difference = found["trie"][name] - gradient
        assert 0 < gradient.norm() < float("inf")
        assert difference.norm() <= tolerance * gradient.norm(), name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_products_of_few_rows_compute_what_the_plain_versions_do(dtype, tolerance):
    test_products.compare_products("cuda", dtype, tolerance)


@pytest.mark.parametrize("cache", ["model", "int8"])
def test_kernels_that_overlap_give_the_results_of_separate_ones(cache, monkeypatch):
    int8_toys.allow_small_models(monkeypatch)
    model = int8_toys.make_model("qwen3", "cuda", torch.bfloat16)
    requests = int8_toys.make_requests((64, 100, 300), 16, 60)
    replies = []
    for overlap in (True, True, False):
        if not overlap:  # `kernels.overlaps` also says which products have kernels of ours
            monkeypatch.setattr("mage.engines.gpu.attend_kernels.overlaps", lambda rows: False)
            monkeypatch.setattr("mage.engines.gpu.product_kernels.overlaps", lambda rows: False)
        found = answer(int8_toys.make_engine(model, cache), requests)
        replies.append([(one.token_ids, one.logprobs) for one in found])
    assert replies[0] == replies[1] == replies[2]


def test_half_precision_replies_have_the_logprobs_of_float32():
    """Over 4,000 tokens: products in pieces, rounded sums and overlapping kernels change little."""
    model = int8_toys.make_model("qwen3", "cuda", torch.bfloat16)
    wide = int8_toys.make_model("qwen3", "cuda", torch.float32)
    requests = int8_toys.make_requests((64, 256), 16, 128)
    replies = answer(int8_toys.make_engine(model, "model", slots=32), requests)
    gaps = []
    for request, reply in zip(requests, replies, strict=True):
        ids = torch.tensor([(*request.prompt_ids, *reply.token_ids)], device="cuda")
        with torch.no_grad():
            logprobs = wide(ids).logits[0].log_softmax(-1)
        start, stop = len(request.prompt_ids) - 1, ids.shape[1] - 1
        own = logprobs[start:stop].gather(1, ids[0, start + 1 :, None])[:, 0]
        gaps.append((own.cpu() - torch.tensor(reply.logprobs)).abs().mean())
    assert torch.stack(gaps).mean() < 0.05


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-3)])
def test_the_kernel_writes_adapters_into_weights(dtype, tolerance):
    test_learner.compare_merging("cuda", dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-3)])
def test_the_kernel_of_the_head_computes_what_the_plain_version_does(dtype, tolerance):
    test_loss.compare_head("cuda", dtype, tolerance)


def test_half_precision_sampler_and_learner_agree_closely():
    chat = Chat.load(find_model("embedded"))
    model = make_pair("llama")[1].to(torch.bfloat16)
    engine = LocalEngine(model, chat, slots=64, context=256)
    prompts = [tuple(range(5, 30 + number)) for number in range(64)]
    replies = answer(engine, [Request(prompt, 30, number) for number, prompt in enumerate(prompts)])
    samples = [
        make_sample(prompt, reply.token_ids, old_logprobs=reply.logprobs)
        for prompt, reply in zip(prompts, replies, strict=True)
        if reply.token_ids
    ]
    metrics = Learner(model, LearnOptions(lr=1e-6)).update(samples, entropy=0.0, update=0)
    assert metrics.mismatch < 0.05


def test_kernels_in_8_bits_compute_what_the_plain_versions_do(kernels):
    int8_toys.compare_kernels(kernels, "cuda")


@pytest.mark.parametrize("kind", int8_toys.KINDS)
def test_logprobs_with_8_bits_stay_near_those_of_the_models_format(kind, monkeypatch):
    """On a CPU they are .020, .031 and .018 at most in float32, .024, .053 and .037 in bfloat16."""
    int8_toys.allow_small_models(monkeypatch)
    model = int8_toys.make_model(kind, "cuda", torch.bfloat16)
    requests = int8_toys.make_requests(int8_toys.LENGTHS, 16, 8)
    engines = [int8_toys.make_engine(model, cache) for cache in ("model", "int8")]
    exact, small = (answer(engine, requests) for engine in engines)
    gaps = int8_toys.mean_gaps(exact, small, 16)
    assert all(1e-3 < gap < 0.1 for gap in gaps), gaps
    assert [engine.pool.store.dtype.itemsize for engine in engines] == [2, 1]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_8_bits_on_the_gpu_give_the_logprobs_of_the_plain_operations_on_the_cpu(kind, monkeypatch):
    int8_toys.allow_small_models(monkeypatch)
    requests = int8_toys.make_requests((64, 256), 8, 6)
    ours, theirs = (
        answer(
            int8_toys.make_engine(int8_toys.make_model(kind, device, torch.float32), "int8"),
            requests,
        )
        for device in ("cuda", "cpu")
    )
    # A number at the border of two integers may be stored as either.
    assert all(gap < 0.02 for gap in int8_toys.mean_gaps(ours, theirs, 8))


@pytest.mark.parametrize("cache", ["model", "int8"])
def test_a_cache_is_deterministic_with_graphs_recycled_slots_and_reused_prefixes(
    cache, monkeypatch
):
    int8_toys.allow_small_models(monkeypatch)
    model = int8_toys.make_model("llama", "cuda", torch.bfloat16)
    requests = int8_toys.make_requests((64, 100, 300), 16, 24)
    engine = int8_toys.make_engine(model, cache)
    replies = []
    for version in range(4):  # computed, recorded, replayed; then with a new pool
        engine.release()
        engine.refresh(version)
        replies.append(answer(engine, requests))
    again = answer(int8_toys.make_engine(model, cache), requests)
    for other in (*replies[1:], again):
        assert [(one.token_ids, one.logprobs) for one in other] == [
            (one.token_ids, one.logprobs) for one in replies[0]
        ]
    assert engine.stats.reused_tokens > 0
    for options in ({"prefix_cache": False}, {"slots": 3}):
        other = answer(int8_toys.make_engine(model, cache, **options), requests)
        gaps = int8_toys.mean_gaps(replies[0], other, 16)
        assert all(gap < 0.05 for gap in gaps), "another batch changes only the last bits"
