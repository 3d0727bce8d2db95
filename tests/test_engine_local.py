"""The local engine gives the tokens and logprobs of plain transformers, whatever the batch."""

import gc
import random
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.engines.base import run
from mage.engines.gpu.loop import DeviceLoop, StepInFlight
from mage.engines.local import LocalEngine
from mage.engines.local.slots import Slots
from mage.types import Completion, Request

END = 1
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = 2 + len(BYTES)
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.2},
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "biased llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
}


@pytest.fixture(autouse=True, params=["step by step", "one step ahead"])
def loop(request, monkeypatch):
    """Every test runs with both loops: the CPU's, and the GPU's (here without graphs)."""
    ahead = request.param == "one step ahead"
    sizes = {"slots": 128, "context": 512} if ahead else {}  # its pool is allocated at the start
    for name, value in {"run_ahead": ahead, **sizes}.items():
        monkeypatch.setitem(LocalEngine.__init__.__kwdefaults__, name, value)


# For what does not depend on the loop.
ONE_LOOP = pytest.mark.parametrize("loop", ["step by step"], indirect=True)


@pytest.fixture(scope="module")
def chat():
    words = ["<|im_start|>", "<|im_end|>", *BYTES]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(words)}, merges=[]))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Chat(tokenizer, TEMPLATE, {}, (END,))


def make(kind: str = "llama") -> Any:
    """A random model. Biases and norms are random too: zeros and ones would hide missing ones."""
    torch.manual_seed(0)
    build, config, more = KINDS[kind]
    model = build(config(**SIZES, **more)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.2)
            elif kind != "llama" and "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def llama():
    return make()


def make_prompts(count: int, shared: int = 40, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of various lengths; every other one begins with the same `shared` tokens."""
    rng = random.Random(seed)
    rules = [rng.randrange(2, VOCABULARY) for _ in range(shared)]
    return [
        tuple(rules * (i % 2) + [rng.randrange(2, VOCABULARY) for _ in range(rng.randrange(1, 60))])
        for i in range(count)
    ]


def answer(engine: LocalEngine, requests: list[Request]) -> list[Completion]:
    async def ask(request: Request) -> Completion:
        return await engine.sample(request)

    return run([ask(request) for request in requests])


@torch.inference_mode()
def plain_logits(model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def check_logprobs(
    model: Any, ids: tuple[int, ...], reply: Completion, temperature: float = 1.0
) -> None:
    """The logprobs of a reply are those of a plain forward."""
    logits = plain_logits(model, ids + reply.token_ids)[len(ids) - 1 : -1] / temperature
    expected = logits.log_softmax(-1)[range(len(reply.token_ids)), reply.token_ids]
    np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)


def check_greedy(engine: Any, prompts: list[tuple[int, ...]]) -> None:
    """Greedy replies are those of `generate` of transformers."""
    ends = {"eos_token_id": list(engine.chat.end_ids), "pad_token_id": 0}
    replies = answer(engine, [Request(ids, 10, 0, 0.0) for ids in prompts])
    for ids, reply in zip(prompts, replies, strict=True):
        given = torch.tensor([ids])
        expected = engine.model.generate(given, max_new_tokens=10, do_sample=False, **ends)
        assert reply.token_ids == tuple(expected[0, len(ids) :].tolist())


def tokens_of(replies: list[Completion]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


@ONE_LOOP
def test_one_step_ahead_all_waiting_prompts_are_prefilled_before_decoding_continues(
    llama, chat, monkeypatch
):
    rng, decoded, launch = random.Random(0), list[int](), DeviceLoop.launch

    def count(loop: DeviceLoop, joining: Any, decoding: Any, *more: Any) -> StepInFlight:
        decoded.append(len(decoding))
        return launch(loop, joining, decoding, *more)

    monkeypatch.setattr(DeviceLoop, "launch", count)
    engine = LocalEngine(llama, chat, slots=8, max_batch_tokens=64, run_ahead=True)
    prompts = [tuple(rng.randrange(2, VOCABULARY) for _ in range(32)) for _ in range(8)]
    replies = answer(engine, [Request(ids, 5, seed) for seed, ids in enumerate(prompts)])
    assert {reply.finish for reply in replies} == {"length"}
    # Four steps of two prompts each sample the first tokens. The fourth step and three more decode
    # the other four tokens of all eight.
    assert decoded == [0, 0, 0, 8, 8, 8, 8]


def test_a_deleted_engine_frees_its_pool_at_once(llama, chat):
    engine = LocalEngine(llama, chat, slots=4)
    answer(engine, [Request(ids, 3, 0) for ids in make_prompts(2)])
    alive = weakref.ref(engine.pool.store)
    gc.disable()
    try:
        del engine
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_greedy_replies_equal_those_of_transformers_generate(kind, chat):
    engine = LocalEngine(make(kind), chat, slots=5, max_batch_tokens=64)
    check_greedy(engine, make_prompts(8))
    assert engine.model.config._attn_implementation == "sdpa"


def through_modules(model: torch.nn.Module, chat: Chat) -> LocalEngine:
    """An engine that runs the modules of transformers: hooks, even empty ones, must be called."""
    hook = model.get_decoder().register_forward_hook(lambda *_: None)
    engine = LocalEngine(model, chat)
    hook.remove()
    assert engine.decoder is None
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_forward_equals_the_modules(kind, chat):
    model, requests = make(kind), [Request(ids, 8, i) for i, ids in enumerate(make_prompts(12))]
    engine = LocalEngine(model, chat)
    assert engine.decoder is not None
    slower = answer(through_modules(model, chat), requests)
    for fast, slow in zip(answer(engine, requests), slower, strict=True):
        assert fast.token_ids == slow.token_ids
        np.testing.assert_allclose(fast.logprobs, slow.logprobs, atol=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize("refreshes", [True, False])
def test_the_fused_forward_sees_a_change_of_any_weight(refreshes, chat):
    model, request = make("qwen3"), Request(make_prompts(1)[0], 2, 0, 0.0)
    engine = LocalEngine(model, chat, prefix_cache=False)
    before = answer(engine, [request])[0].logprobs
    random_numbers = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        with torch.no_grad():
            # A change through `.data` is seen only after a refresh. The change is random: a norm
            # would undo a common factor.
            change = 0.2 * torch.randn(weight.shape, generator=random_numbers)
            (weight.data if refreshes else weight).add_(change)
        if refreshes:
            engine.refresh(1)
        (after,) = answer(engine, [replace(request)])
        assert abs(after.logprobs[0] - before[0]) > 1e-3, f"{name}: more than rounding"
        check_logprobs(model, request.prompt_ids, after)
        before = after.logprobs


def test_only_plain_models_take_the_fused_forward(chat):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    for model in (
        get_peft_model(make(), LoraConfig(r=4)),
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
        LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)),
        LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")),
    ):
        engine, ids = LocalEngine(model.eval(), chat), make_prompts(1)[0]
        assert engine.decoder is None
        check_logprobs(model, ids, answer(engine, [Request(ids, 4, 0)])[0])
    model = make()
    engine = LocalEngine(model, chat)
    get_peft_model(model, LoraConfig(r=4))  # adds its layers to the model itself
    engine.refresh(1)
    assert engine.decoder is None


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_forward(temperature, llama, chat):
    prompts = make_prompts(12)
    requests = [Request(ids, 8, i, temperature) for i, ids in enumerate(prompts)]
    for ids, reply in zip(prompts, answer(LocalEngine(llama, chat), requests), strict=True):
        check_logprobs(llama, ids, reply, temperature)


def test_a_reply_depends_on_its_seed_and_not_on_its_batch(llama, chat):
    requests = [Request(ids, 10, 100 + i) for i, ids in enumerate(make_prompts(20))]
    crowd = tokens_of(answer(LocalEngine(llama, chat), requests))
    alone = [answer(LocalEngine(llama, chat), [request])[0] for request in requests[:4]]
    assert tokens_of(alone) == crowd[:4]
    others = [replace(request, seed=-request.seed) for request in requests]
    other = tokens_of(answer(LocalEngine(llama, chat), others))
    assert sum(a == b for a, b in zip(crowd, other, strict=True)) < 3


def play(engine: LocalEngine, games: int, turns: int) -> list[tuple[int, ...]]:
    """Growing conversations with the same rules; members of a group have the same opening."""

    async def game(index: int) -> tuple[int, ...]:
        rng = random.Random(index // 4)
        ids = tuple(range(2, 50)) + tuple(rng.randrange(2, VOCABULARY) for _ in range(20))
        for turn in range(turns):
            reply = await engine.sample(Request(ids, 3 + index % 5, 1000 * index + turn))
            ids += reply.token_ids + tuple(rng.randrange(2, VOCABULARY) for _ in range(10))
        return ids

    return run([game(index) for index in range(games)])


@pytest.mark.e2e
def test_the_prefix_cache_changes_no_reply_and_saves_most_of_the_prefill(llama, chat):
    cached = LocalEngine(llama, chat, slots=64)
    plain = LocalEngine(llama, chat, slots=64, prefix_cache=False)
    played = play(cached, 24, 4)
    assert played == play(plain, 24, 4)
    assert plain.stats.reused_tokens == 0
    total = plain.stats.prefilled_tokens
    assert cached.stats.prefilled_tokens + cached.stats.reused_tokens == total
    # By hand: the rules once (48), 6 openings of 20, and at most 18 new tokens in each of 3 later
    # turns (+ 1 where all is cached).
    assert cached.stats.prefilled_tokens <= 48 + 6 * 20 + 24 * (3 * 18 + 1)
    few = LocalEngine(llama, chat, slots=3, max_batch_tokens=40)
    assert play(few, 8, 4) == played[:8], "few slots serve many growing conversations"


def finish(engine: LocalEngine, requests: list[Request], found: dict[Any, Any]) -> list[Completion]:
    """Step until all requests are answered."""
    while len(found) < len(requests):
        found.update(engine.step())
    return [found[request] for request in requests]


def test_sequences_join_while_others_decode(llama, chat):
    requests = [Request(ids, 12, i, 0.0) for i, ids in enumerate(make_prompts(8))]
    engine, replies = LocalEngine(llama, chat), {}
    for request in requests:
        engine.submit(request)
        replies.update(engine.step())
    assert 0 < engine.stats.generated_tokens < 8 * 12
    together = answer(LocalEngine(llama, chat), requests)
    assert tokens_of(finish(engine, requests, replies)) == tokens_of(together)


def test_a_token_that_is_not_read_yet_is_no_prefix_of_another_prompt(llama, chat):
    """The slot of a prompt still has the old reply while its new first token is computed."""
    prompt = tuple(range(2, 50))
    engine = LocalEngine(llama, chat, slots=2)
    (old,) = answer(engine, [Request(prompt, 3, 0)])
    answer(engine, [Request(tuple(range(60, 100)), 3, 0)])  # takes the other slot
    requests = [Request(prompt, 9, 1), Request((*prompt, *old.token_ids, 5, 6), 4, 2)]
    for request in requests:
        engine.submit(request)
        engine.step()
    _, reply = finish(engine, requests, {})
    (alone,) = answer(LocalEngine(llama, chat), requests[1:])
    assert reply.token_ids == alone.token_ids
    assert reply.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def repeat(model: Any, chat: Chat, text: str) -> None:
    """Weights with which a model repeats `text`: its layers add 0, its head maps to the next."""
    ids = chat.encode(text)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for token, following in zip(ids, ids[1:] + ids[:1], strict=True):
            model.lm_head.weight[following] += model.model.embed_tokens.weight[token]


def successor_llama(chat: Chat, text: str) -> LlamaForCausalLM:
    model = make()
    repeat(model, chat, text)
    return model


@pytest.mark.parametrize(
    ("stop", "reply", "finish"),
    [
        (("d>",), "bé<ad>", "stop"),
        (("zz", "é<"), "bé<", "stop"),
        (("é",), "bé", "stop"),  # this letter is two tokens
        ((), "bé<ad> bé<a", "length"),
        (("zz",), "bé<ad> bé<a", "length"),
        (("> ",), "bé<ad> ", "stop"),
    ],
)
def test_a_reply_ends_where_a_stop_string_first_appears(stop, reply, finish, chat):
    engine = LocalEngine(successor_llama(chat, "bé<ad> "), chat)
    (completion,) = answer(engine, [Request(chat.encode(" "), 13, 0, 0.0, stop=stop)])
    assert (completion.text, completion.finish) == (reply, finish)
    assert completion.token_ids == chat.encode(reply)


def test_the_end_token_is_kept_in_the_ids_and_not_in_the_text(chat):
    engine = LocalEngine(successor_llama(chat, "ok<|im_end|>"), chat)
    (one,) = answer(engine, [Request(chat.encode("o"), 9, 0, 0.0, stop=("!",))])
    assert (one.token_ids, one.text, one.finish) == ((*chat.encode("k"), END), "k", "eos")


def test_a_prompt_that_fills_the_context_gives_an_empty_reply(llama, chat):
    engine = LocalEngine(llama, chat, context=32)
    full, tight = answer(engine, [Request((5,) * 32, 4, 0), Request((5,) * 30, 4, 0)])
    assert full == Completion((), (), "", "overflow", 0)
    assert (len(tight.token_ids), tight.finish) == (2, "length")


def truncated(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The same rule in a slow implementation, one token at a time."""
    probabilities = logits.double().softmax(-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    order, kept = order[: top_k or None], []
    total = sum(probabilities[token] for token in order)
    for token in order:
        if sum(probabilities[other] for other in kept) >= top_p * total:
            break
        kept.append(token)
    result = torch.zeros(len(probabilities), dtype=torch.float64)
    result[kept] = torch.tensor([probabilities[token] for token in kept], dtype=torch.float64)
    return result / result.sum()


def check_samples(engine: Any, ids: tuple[int, ...], top_k: int, top_p: float, count: int) -> None:
    """Samples and logprobs follow the truncated softmax."""
    expected = truncated(plain_logits(engine.model, ids)[-1], top_k, top_p)
    requests = [Request(ids, 1, seed, top_k=top_k, top_p=top_p) for seed in range(count)]
    replies = answer(engine, requests)
    tokens = [reply.token_ids[0] for reply in replies]
    logprobs = [reply.logprobs[0] for reply in replies]
    np.testing.assert_allclose(logprobs, expected[tokens].log(), atol=1e-4)
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    likely = expected.numpy() * len(tokens) >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum()) * len(tokens)
    assert chisquare(seen[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (8, 0.7)])
def test_samples_and_logprobs_follow_the_truncated_softmax(top_k, top_p, llama, chat):
    check_samples(LocalEngine(llama, chat), make_prompts(1)[0], top_k, top_p, 600)


def test_a_greedy_reply_has_the_logprobs_of_the_model_whatever_is_cut(llama, chat):
    ids = make_prompts(1)[0]
    expected = plain_logits(llama, ids)[-1].log_softmax(-1).max().item()
    requests = [Request(ids, 1, 0, 0.0, top_k=3), Request(ids, 1, 1, 0.0, top_p=0.5)]
    for reply in answer(LocalEngine(llama, chat), requests):
        assert reply.logprobs == pytest.approx([expected], abs=1e-4)


def test_refresh_drops_results_of_the_old_weights(chat):
    model, requests = make(), [Request(ids, 6, 0, 0.0) for ids in make_prompts(6)]
    engine = LocalEngine(model, chat)
    before = answer(engine, requests)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3).add_(0.02)
    engine.refresh(7)
    reused = engine.stats.reused_tokens
    after = answer(engine, [replace(request) for request in requests])
    fresh = answer(LocalEngine(model, chat), [replace(request) for request in requests])
    assert tokens_of(after) == tokens_of(fresh) != tokens_of(before)
    assert {reply.policy_version for reply in after} == {7}
    assert engine.stats.reused_tokens - reused < 6 * 40


def test_replies_are_the_same_after_the_pool_was_released(llama, chat):
    engine = LocalEngine(llama, chat)
    requests = [Request(ids, 6, seed, 1.0) for seed, ids in enumerate(make_prompts(5))]
    before = answer(engine, requests)
    held = engine.pool.store.numel()
    engine.release()
    if engine.loop is not None:  # as on a GPU
        assert engine.pool.store.numel() == 0
        assert not engine.loop.graphs
    engine.refresh(1)
    assert engine.pool.store.numel() == held
    again = answer(engine, [replace(request) for request in requests])
    assert tokens_of(again) == tokens_of(before)


@pytest.mark.parametrize("between", ["release", "refresh"])
def test_open_sequences_continue_after_a_release_or_refresh(between, llama, chat):
    requests = [Request(ids, 12, seed, 1.0) for seed, ids in enumerate(make_prompts(6))]
    expected = answer(LocalEngine(llama, chat), requests)
    engine, replies = LocalEngine(llama, chat), {}
    for request in requests:
        engine.submit(request)
    for _ in range(3):
        replies.update(engine.step())
    engine.release() if between == "release" else engine.refresh(1)
    assert tokens_of(finish(engine, requests, replies)) == tokens_of(expected)


def test_a_lora_model_in_training_mode_is_sampled_without_dropout_and_restored(chat):
    targets = ["q_proj", "v_proj", "down_proj"]
    lora = LoraConfig(r=4, lora_dropout=0.5, init_lora_weights=False, target_modules=targets)
    model = get_peft_model(make(), lora).train()
    prompts = make_prompts(4)
    replies = answer(LocalEngine(model, chat), [Request(ids, 6, 0) for ids in prompts])
    assert all(module.training for module in model.modules())
    model(torch.tensor([prompts[1]]), labels=torch.tensor([prompts[1]])).loss.backward()
    model.eval()
    for ids, reply in zip(prompts, replies, strict=True):
        check_logprobs(model, ids, reply)


def test_the_number_of_slots_is_limited_by_memory(llama, chat, monkeypatch):
    size = 2 * 2 * 64 * 2 * 16 * 4  # layers, keys and values, tokens, heads, head size, bytes
    monkeypatch.setattr("mage.engines.pool.memory_for_slots", lambda device: 5 * size)
    few = LocalEngine(llama, chat, slots=512, context=64)
    assert few.capacity == 4
    requests = [Request(ids, 6, seed) for seed, ids in enumerate(make_prompts(9))]
    other = LocalEngine(llama, chat, slots=3, context=64)
    assert tokens_of(answer(few, requests)) == tokens_of(answer(other, requests))
    with pytest.raises(ValueError, match=r"are left for the cache: lower engines\.context"):
        LocalEngine(llama, chat, slots=512, context=256)
    monkeypatch.setattr("mage.engines.pool.memory_for_slots", lambda device: None)
    assert LocalEngine(llama, chat, slots=512, context=64).capacity == 512


@ONE_LOOP
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("granite", SIZES | {"logits_scaling": 8.0}),
        ("cohere", SIZES | {"logit_scale": 0.1}),
        ("bloom", {"hidden_size": 32, "n_layer": 1, "n_head": 2}),
        ("gptj", {"n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 4}),
        (
            "gpt_neo",
            {"hidden_size": 32, "num_layers": 1, "num_heads": 2}
            | {"attention_types": [[["global"], 1]]},
        ),
        ("diffllama", SIZES),
    ],
)
def test_a_model_with_other_logits_is_refused(chat, kind, options):
    config = AutoConfig.for_model(kind, **{"vocab_size": 300} | options)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.get_output_embeddings().weight.data.mul_(50)
    with pytest.raises(UserError, match=r"computes (other|attention or)"):
        LocalEngine(model, chat, slots=1, context=32)


@ONE_LOOP
@pytest.mark.parametrize("kind", ["window", "dynamic", "longrope"])
def test_a_context_longer_than_a_window_or_fixed_positions_is_refused(chat, kind):
    """A cached key would keep its old position: log-probabilities differ by several nats."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4, **factors}
    rope["original_max_position_embeddings"] = 32
    if kind == "window":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=32)).eval()
    else:
        sizes = SIZES | {"max_position_embeddings": 32}
        model = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).eval()
    LocalEngine(model, chat, slots=1, context=32)
    message = r"set engines\.context to 32 or less"
    with pytest.raises(UserError, match=message if kind == "window" else f"rope_type.*{message}"):
        LocalEngine(model, chat, slots=1, context=64)


@ONE_LOOP
def test_sliding_window_layers_are_refused(chat):
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    with pytest.raises(ValueError, match="full attention"):
        LocalEngine(Qwen3ForCausalLM(Qwen3Config(**SIZES, **window)), chat)


@ONE_LOOP
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=40),
    st.integers(2, 5),
)
def test_a_lease_promises_only_tokens_that_are_cached(moves, count):
    """`contents` stands for the tensor pool: a slot holds what was copied or computed there."""
    slots, contents, stories, leased = Slots(count, 2000), {}, [tuple(range(35))] * 4, []
    for teller, extra, goes_on in moves:
        story = stories[teller] + tuple((teller * 7 + extra + i) % 11 for i in range(extra))
        stories[teller] = story if goes_on else story[:20]
        slots.clock += 1
        lease = slots.lease(story) if slots.available else None
        if lease is not None:
            contents[lease.slot] = (
                contents.get(lease.slot, ())[: lease.kept]
                + contents.get(lease.source, ())[lease.kept : lease.reused]
            )
            assert contents[lease.slot] == story[: lease.reused]
            assert lease.reused < len(story)
            assert lease.slot not in leased
            leased.append(lease.slot)
            contents[lease.slot] = story
            slots.filled[lease.slot] = len(story)
            slots.commit(lease.slot)
        if leased and (lease is None or extra % 2):
            slots.release(leased.pop(0))
