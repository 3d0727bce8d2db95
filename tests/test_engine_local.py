"""The local engine gives the tokens and logprobs of plain transformers, whatever the batch."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace

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
from mage.engines.gpu.loop import Array, DeviceLoop, StepInFlight
from mage.engines.gpu.prefill import Joining
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
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True, params=["step by step", "one step ahead"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both loops: the CPU's, and the GPU's (here without graphs)."""
    ahead = request.param == "one step ahead"
    sizes = {"slots": 128, "context": 512} if ahead else {}  # its pool is allocated at the start
    for name, value in {"run_ahead": ahead, **sizes}.items():
        monkeypatch.setitem(LocalEngine.__init__.__kwdefaults__, name, value)


@pytest.fixture(scope="module")
def chat() -> Chat:
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(["<|im_start|>", "<|im_end|>", *BYTES])},
            merges=[],
        )
    )
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Chat(tokenizer, TEMPLATE, {}, (END,))


def make_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def make_qwen() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES)).eval()


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return make_llama()


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
def plain_logits(model: torch.nn.Module, ids: tuple[int, ...]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def test_one_step_ahead_all_waiting_prompts_are_prefilled_before_decoding_continues(
    llama: LlamaForCausalLM, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(2, VOCABULARY) for _ in range(32)) for _ in range(8)]
    decoded: list[int] = []
    launch = DeviceLoop.launch

    def count(
        loop: DeviceLoop, joining: Joining | None, decoding: Array, shared: int, cut: bool
    ) -> StepInFlight:
        decoded.append(len(decoding))
        return launch(loop, joining, decoding, shared, cut)

    monkeypatch.setattr(DeviceLoop, "launch", count)
    engine = LocalEngine(llama, chat, slots=8, max_batch_tokens=64, run_ahead=True)
    replies = answer(engine, [Request(ids, 5, seed) for seed, ids in enumerate(prompts)])
    assert {reply.finish for reply in replies} == {"length"}
    # Four steps of two prompts each sample the first tokens. The fourth step and three more decode
    # the other four tokens of all eight.
    assert decoded == [0, 0, 0, 8, 8, 8, 8]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_deleted_engine_frees_its_pool_at_once(
    llama: LlamaForCausalLM, chat: Chat, ahead: bool
) -> None:
    engine = LocalEngine(llama, chat, slots=4, run_ahead=ahead)
    answer(engine, [Request(ids, 3, 0) for ids in make_prompts(2)])
    alive = weakref.ref(engine.pool.store)
    gc.disable()
    try:
        del engine
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [make_llama, make_qwen])
def test_greedy_replies_equal_those_of_transformers_generate(
    make: Callable[[], LlamaForCausalLM], chat: Chat
) -> None:
    model, prompts = make(), make_prompts(12)
    replies = answer(
        LocalEngine(model, chat, slots=5, max_batch_tokens=64),
        [Request(ids, 10, 0, 0.0) for ids in prompts],
    )
    for ids, reply in zip(prompts, replies, strict=True):
        expected = model.generate(
            torch.tensor([ids]),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=END,
            pad_token_id=0,
        )
        assert reply.token_ids == tuple(expected[0, len(ids) :].tolist())
    assert model.config._attn_implementation == "sdpa"


def make_qwen2() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.2)
    return model


def make_biased_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.2)
    return model


def through_modules(model: torch.nn.Module, chat: Chat) -> LocalEngine:
    """An engine that runs the modules of transformers: hooks, even empty ones, must be called."""
    hook = model.get_decoder().register_forward_hook(lambda *_: None)
    engine = LocalEngine(model, chat)
    hook.remove()
    assert engine.decoder is None
    return engine


@pytest.mark.parametrize("make", [make_llama, make_qwen, make_qwen2, make_biased_llama])
def test_the_fused_forward_equals_the_modules(
    make: Callable[[], LlamaForCausalLM], chat: Chat
) -> None:
    model, requests = make(), [Request(ids, 8, i) for i, ids in enumerate(make_prompts(12))]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # all ones initially, which would hide a missing norm
                weight.uniform_(0.5, 1.5)
    engine = LocalEngine(model, chat)
    assert engine.decoder is not None
    for fast, slow in zip(
        answer(engine, requests), answer(through_modules(model, chat), requests), strict=True
    ):
        assert fast.token_ids == slow.token_ids
        np.testing.assert_allclose(fast.logprobs, slow.logprobs, atol=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize("refreshes", [True, False])
def test_the_fused_forward_sees_a_change_of_any_weight(refreshes: bool, chat: Chat) -> None:
    model, request = make_qwen(), Request(make_prompts(1)[0], 2, 0, 0.0)
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
        after = answer(engine, [replace(request)])[0].logprobs
        assert abs(after[0] - before[0]) > 1e-3, f"{name}: more than rounding (below 1e-5)"
        np.testing.assert_allclose(
            after, answer(through_modules(model, chat), [replace(request)])[0].logprobs, atol=1e-4
        )
        before = after


def test_only_plain_models_take_the_fused_forward(chat: Chat) -> None:
    scaled = LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    )
    foreign = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None))
    others = (
        get_peft_model(make_llama(), LoraConfig(r=4)),
        foreign,
        LlamaForCausalLM(scaled),
        LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")),
    )
    for model in others:
        engine = LocalEngine(model.eval(), chat)
        assert engine.decoder is None
        ids = make_prompts(1)[0]
        (reply,) = answer(engine, [Request(ids, 4, 0)])
        expected = plain_logits(model, ids + reply.token_ids)[len(ids) - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(
            reply.logprobs, expected[range(len(reply.token_ids)), reply.token_ids], atol=1e-4
        )


def test_an_adapter_added_later_is_used_from_the_next_refresh(chat: Chat) -> None:
    model = make_llama()
    engine = LocalEngine(model, chat)
    get_peft_model(model, LoraConfig(r=4))  # adds its layers to the model itself
    engine.refresh(1)
    assert engine.decoder is None


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_forward(
    temperature: float, llama: LlamaForCausalLM, chat: Chat
) -> None:
    prompts = make_prompts(12)
    replies = answer(
        LocalEngine(llama, chat), [Request(ids, 8, i, temperature) for i, ids in enumerate(prompts)]
    )
    for ids, reply in zip(prompts, replies, strict=True):
        logits = plain_logits(llama, ids + reply.token_ids)[len(ids) - 1 : -1] / temperature
        expected = logits.log_softmax(-1)[range(len(reply.token_ids)), reply.token_ids]
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)


def test_a_reply_depends_on_its_seed_and_not_on_its_batch(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
    requests = [Request(ids, 10, 100 + i) for i, ids in enumerate(make_prompts(30))]
    crowd = answer(LocalEngine(llama, chat), requests)
    alone = [answer(LocalEngine(llama, chat), [request])[0] for request in requests[:6]]
    assert [reply.token_ids for reply in alone] == [reply.token_ids for reply in crowd[:6]]
    other = answer(
        LocalEngine(llama, chat), [replace(request, seed=-request.seed) for request in requests]
    )
    assert sum(a.token_ids == b.token_ids for a, b in zip(crowd, other, strict=True)) < 3


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
def test_the_prefix_cache_changes_no_reply_and_saves_most_of_the_prefill(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
    cached, plain = (
        LocalEngine(llama, chat, slots=64),
        LocalEngine(llama, chat, slots=64, prefix_cache=False),
    )
    assert play(cached, 40, 4) == play(plain, 40, 4)
    assert plain.stats.reused_tokens == 0
    total = plain.stats.prefilled_tokens
    assert cached.stats.prefilled_tokens + cached.stats.reused_tokens == total
    # By hand: the rules once (48), 10 openings of 20, and at most 18 new tokens in each of 3 later
    # turns (+ 1 where all is cached).
    assert cached.stats.prefilled_tokens <= 48 + 10 * 20 + 40 * (3 * 18 + 1)


def test_few_slots_serve_many_growing_conversations(llama: LlamaForCausalLM, chat: Chat) -> None:
    assert play(LocalEngine(llama, chat, slots=3, max_batch_tokens=40), 12, 3) == play(
        LocalEngine(llama, chat), 12, 3
    )


def test_sequences_join_while_others_decode(llama: LlamaForCausalLM, chat: Chat) -> None:
    requests = [Request(ids, 12, i, 0.0) for i, ids in enumerate(make_prompts(8))]
    engine, replies = LocalEngine(llama, chat), {}
    for request in requests:
        engine.submit(request)
        replies.update(engine.step())
    assert 0 < engine.stats.generated_tokens < 8 * 12
    while len(replies) < 8:
        replies.update(engine.step())
    together = answer(LocalEngine(llama, chat), requests)
    assert [replies[request].token_ids for request in requests] == [
        reply.token_ids for reply in together
    ]


def test_a_token_that_is_not_read_yet_is_no_prefix_of_another_prompt(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
    """The slot of a prompt still has the old reply while its new first token is computed."""
    prompt = tuple(range(2, 50))
    engine = LocalEngine(llama, chat, slots=2)
    (old,) = answer(engine, [Request(prompt, 3, 0)])
    answer(engine, [Request(tuple(range(60, 100)), 3, 0)])  # takes the other slot
    engine.submit(Request(prompt, 9, 1))
    engine.step()
    request = Request((*prompt, *old.token_ids, 5, 6), 4, 2)
    engine.submit(request)
    replies: dict[Request, Completion] = {}
    while request not in replies:
        replies.update(engine.step())
    (alone,) = answer(LocalEngine(llama, chat), [request])
    assert replies[request].token_ids == alone.token_ids
    assert replies[request].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def successor_llama(chat: Chat, text: str) -> LlamaForCausalLM:
    """A Llama that repeats `text`: attention and MLP give 0; the head maps a token to the next."""
    model = make_llama()
    ids = chat.encode(text)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for token, following in zip(ids, ids[1:] + ids[:1], strict=True):
            model.lm_head.weight[following] += model.model.embed_tokens.weight[token]
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
def test_a_reply_ends_where_a_stop_string_first_appears(
    stop: tuple[str, ...], reply: str, finish: str, chat: Chat
) -> None:
    engine = LocalEngine(successor_llama(chat, "bé<ad> "), chat)
    (completion,) = answer(engine, [Request(chat.encode(" "), 13, 0, 0.0, stop=stop)])
    assert (completion.text, completion.finish) == (reply, finish)
    assert completion.token_ids == chat.encode(reply)


def test_the_end_token_is_kept_in_the_ids_and_not_in_the_text(chat: Chat) -> None:
    engine = LocalEngine(successor_llama(chat, "ok<|im_end|>"), chat)
    (completion,) = answer(engine, [Request(chat.encode("o"), 9, 0, 0.0, stop=("!",))])
    assert (completion.token_ids, completion.text, completion.finish) == (
        (*chat.encode("k"), END),
        "k",
        "eos",
    )


def test_a_prompt_that_fills_the_context_gives_an_empty_reply(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
    engine = LocalEngine(llama, chat, context=32)
    full, tight = answer(engine, [Request((5,) * 32, 4, 0), Request((5,) * 30, 4, 0)])
    assert full == Completion((), (), "", "overflow", 0)
    assert (len(tight.token_ids), tight.finish) == (2, "length")


def truncated(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The same rule in a slow implementation, one token at a time."""
    probabilities = logits.double().softmax(-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[
        : top_k or None
    ]
    total, kept = sum(probabilities[token] for token in order), []
    for token in order:
        if sum(probabilities[other] for other in kept) >= top_p * total:
            break
        kept.append(token)
    result = torch.zeros(len(probabilities), dtype=torch.float64)
    result[kept] = torch.tensor([probabilities[token] for token in kept], dtype=torch.float64)
    return result / result.sum()


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (8, 0.7)])
def test_samples_and_logprobs_follow_the_truncated_softmax(
    top_k: int, top_p: float, llama: LlamaForCausalLM, chat: Chat
) -> None:
    ids = make_prompts(1)[0]
    expected = truncated(plain_logits(llama, ids)[-1], top_k, top_p)
    replies = answer(
        LocalEngine(llama, chat),
        [Request(ids, 1, seed, top_k=top_k, top_p=top_p) for seed in range(600)],
    )
    tokens = [reply.token_ids[0] for reply in replies]
    np.testing.assert_allclose(
        [reply.logprobs[0] for reply in replies], expected[tokens].log(), atol=1e-4
    )
    counts = np.bincount(tokens, minlength=VOCABULARY)
    assert not counts[expected == 0].any()
    likely = expected.numpy() * len(tokens) >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum()) * len(tokens)
    assert chisquare(seen[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3


def test_a_greedy_reply_has_the_logprobs_of_the_model_whatever_is_cut(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
    ids = make_prompts(1)[0]
    expected = plain_logits(llama, ids)[-1].log_softmax(-1).max().item()
    requests = [Request(ids, 1, 0, 0.0, top_k=3), Request(ids, 1, 1, 0.0, top_p=0.5)]
    for reply in answer(LocalEngine(llama, chat), requests):
        assert reply.logprobs == pytest.approx([expected], abs=1e-4)


def test_refresh_drops_results_of_the_old_weights(chat: Chat) -> None:
    model, requests = make_llama(), [Request(ids, 6, 0, 0.0) for ids in make_prompts(6)]
    engine = LocalEngine(model, chat)
    before = answer(engine, requests)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3).add_(0.02)
    engine.refresh(7)
    reused = engine.stats.reused_tokens
    after = answer(engine, [replace(request) for request in requests])
    fresh = answer(LocalEngine(model, chat), [replace(request) for request in requests])
    assert (
        [reply.token_ids for reply in after]
        == [reply.token_ids for reply in fresh]
        != [reply.token_ids for reply in before]
    )
    assert {reply.policy_version for reply in after} == {7}
    assert engine.stats.reused_tokens - reused < 6 * 40


def test_replies_are_the_same_after_the_pool_was_released(
    llama: LlamaForCausalLM, chat: Chat
) -> None:
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
    assert [one.token_ids for one in again] == [one.token_ids for one in before]


def test_a_release_keeps_the_keys_of_open_sequences(llama: LlamaForCausalLM, chat: Chat) -> None:
    request = Request(make_prompts(1)[0], 12, 3, 1.0)
    (whole,) = answer(LocalEngine(llama, chat), [replace(request)])
    engine = LocalEngine(llama, chat)
    engine.submit(request)
    found = [answered for _ in range(3) for answered in engine.step()]
    engine.release()
    while not found:
        found = engine.step()
    assert found[0][1].token_ids == whole.token_ids


def test_open_sequences_continue_after_a_refresh(llama: LlamaForCausalLM, chat: Chat) -> None:
    requests = [Request(ids, 8, 0, 0.0) for ids in make_prompts(6)]
    expected = answer(LocalEngine(llama, chat), requests)
    engine, replies = LocalEngine(llama, chat), {}
    for request in requests:
        engine.submit(request)
    for _ in range(4):
        replies.update(engine.step())
    engine.refresh(1)
    while len(replies) < 6:
        replies.update(engine.step())
    assert [replies[request].token_ids for request in requests] == [
        reply.token_ids for reply in expected
    ]


def test_a_lora_model_in_training_mode_is_sampled_without_dropout_and_restored(chat: Chat) -> None:
    lora = LoraConfig(
        r=4,
        lora_dropout=0.5,
        init_lora_weights=False,
        target_modules=["q_proj", "v_proj", "down_proj"],
    )
    model = get_peft_model(make_llama(), lora).train()
    prompts = make_prompts(4)
    replies = answer(LocalEngine(model, chat), [Request(ids, 6, 0) for ids in prompts])
    assert model.training
    assert all(module.training for module in model.modules())
    loss = model(torch.tensor([prompts[1]]), labels=torch.tensor([prompts[1]])).loss
    loss.backward()
    model.eval()
    for ids, reply in zip(prompts, replies, strict=True):
        expected = plain_logits(model, ids + reply.token_ids)[len(ids) - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(
            reply.logprobs, expected[range(len(reply.token_ids)), reply.token_ids], atol=1e-4
        )


def test_the_number_of_slots_is_limited_by_memory(
    llama: LlamaForCausalLM, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = llama.config
    size = (
        config.num_hidden_layers * 2 * 64 * config.num_key_value_heads * config.head_dim * 4
    )  # bytes of a sequence of 64 tokens
    monkeypatch.setattr("mage.engines.pool.memory_for_slots", lambda device: 5 * size)
    few = LocalEngine(llama, chat, slots=512, context=64)
    assert few.capacity == 4
    requests = [Request(ids, 6, seed) for seed, ids in enumerate(make_prompts(9))]
    replies = [
        answer(engine, requests) for engine in (few, LocalEngine(llama, chat, slots=3, context=64))
    ]
    assert [reply.token_ids for reply in replies[0]] == [reply.token_ids for reply in replies[1]]
    with pytest.raises(ValueError, match=r"are left for the cache: lower engines\.context"):
        LocalEngine(llama, chat, slots=512, context=256)
    monkeypatch.setattr("mage.engines.pool.memory_for_slots", lambda device: None)
    assert LocalEngine(llama, chat, slots=512, context=64).capacity == 512


@pytest.mark.parametrize("kind", ["granite", "cohere", "bloom", "gptj", "gpt_neo", "diffllama"])
def test_a_model_with_other_logits_is_refused(chat: Chat, kind: str) -> None:
    options = {
        "granite": SIZES | {"logits_scaling": 8.0},
        "cohere": SIZES | {"logit_scale": 0.1},
        "bloom": {"vocab_size": 300, "hidden_size": 32, "n_layer": 1, "n_head": 2},
        "gptj": {"vocab_size": 300, "n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 4},
        "gpt_neo": {
            **{"vocab_size": 300, "hidden_size": 32, "num_layers": 1, "num_heads": 2},
            "attention_types": [[["global"], 1]],
        },
        "diffllama": SIZES,
    }[kind]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval()
    model.get_output_embeddings().weight.data.mul_(50)
    with pytest.raises(UserError, match=r"computes (other|attention or)"):
        LocalEngine(model, chat, slots=1, context=32)


def test_a_window_shorter_than_the_context_is_refused(chat: Chat) -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=32)).eval()
    LocalEngine(model, chat, slots=1, context=32)
    with pytest.raises(UserError, match=r"set engines\.context to 32 or less"):
        LocalEngine(model, chat, slots=1, context=64)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_change_with_the_length_of_a_text_are_refused(chat: Chat, kind: str) -> None:
    """A cached key would keep its old position: log-probabilities differ by several nats."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4, **factors}
    sizes = SIZES | {"max_position_embeddings": 32}
    limit = {"original_max_position_embeddings": 32}
    model = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope | limit)).eval()
    LocalEngine(model, chat, slots=1, context=32)
    with pytest.raises(UserError, match=r"rope_type.*set engines\.context to 32 or less"):
        LocalEngine(model, chat, slots=1, context=64)


def test_sliding_window_layers_are_refused(chat: Chat) -> None:
    model = Qwen3ForCausalLM(
        Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    )
    with pytest.raises(ValueError, match="full attention"):
        LocalEngine(model, chat)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=40),
    st.integers(2, 5),
)
def test_a_lease_promises_only_tokens_that_are_cached(
    moves: list[tuple[int, int, bool]], count: int
) -> None:
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
