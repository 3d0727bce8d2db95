"""The vLLM engine gives the tokens and logprobs of plain transformers, as the local engine does.

Every test runs with a small stand-in for vLLM, and with vLLM itself where it is installed. vLLM
starts slowly, so all tests share one engine: they change the weights of its model and refresh it.
"""

import importlib.util
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_toys
from test_engine_local import (
    answer,
    check_greedy,
    check_logprobs,
    check_samples,
    plain_logits,
    repeat,
    tokens_of,
)
from toys import byte_chat
from transformers import (
    AutoConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.loading import load_recipe
from mage.engines.vllm import VllmEngine, choose_executor, pool_size
from mage.models.base import find_model
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.types import Completion, Request

CONTEXT = 160
SIZES: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"initializer_range": 0.2, "tie_word_embeddings": False},
    "head_dim": 64,  # vLLM refuses smaller ones on a CPU
}
OTHER = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
KINDS = ["stand-in", pytest.param("vllm", marks=OTHER)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "stand-in":
            vllm_toys.install(patch)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # faster for a tiny model
        yield request.param
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def chat():
    return byte_chat()


@pytest.fixture(scope="module")
def shared(kind, chat):
    return VllmEngine(make_model(chat), chat, slots=8, context=CONTEXT, eager=True)


@pytest.fixture
def engine(shared, chat):
    """The shared engine with the first weights."""
    shared.model.load_state_dict(make_model(chat).state_dict())
    shared.refresh(0)
    return shared


def make_model(chat: Chat) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    size = chat.tokenizer.get_vocab_size()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, vocab_size=size)).eval()


def make_prompts(count: int, chat: Chat) -> list[tuple[int, ...]]:
    rng, size = random.Random(0), chat.tokenizer.get_vocab_size()
    return [tuple(rng.choices(range(3, size), k=rng.randrange(1, 60))) for _ in range(count)]


@pytest.mark.e2e
def test_greedy_replies_equal_those_of_transformers_generate(engine, chat):
    check_greedy(engine, make_prompts(5, chat))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_forward(temperature, engine, chat):
    prompts = make_prompts(5, chat)
    replies = answer(engine, [Request(ids, 8, i, temperature) for i, ids in enumerate(prompts)])
    for ids, reply in zip(prompts, replies, strict=True):
        check_logprobs(engine.model, ids, reply, temperature)


@pytest.mark.e2e
def test_a_reply_depends_on_its_seed_and_not_on_its_batch(engine, chat):
    requests = [Request(ids, 10, 100 + i) for i, ids in enumerate(make_prompts(6, chat))]
    crowd = tokens_of(answer(engine, requests))
    alone = [answer(engine, [replace(request)])[0] for request in requests[:2]]
    assert tokens_of(alone) == crowd[:2]
    others = [replace(request, seed=-request.seed) for request in requests]
    assert sum(a == b for a, b in zip(crowd, tokens_of(answer(engine, others)), strict=True)) < 3


@pytest.mark.parametrize(
    ("stop", "reply", "finish"),
    [
        (("d>",), "bé<ad>", "stop"),
        (("é",), "bé", "stop"),  # this letter is two tokens
        ((), "bé<ad> bé<a", "length"),
        (("zz",), "bé<ad> bé<a", "length"),
    ],
)
def test_a_reply_ends_where_a_stop_string_first_appears(stop, reply, finish, engine, chat):
    repeat(engine.model, chat, "bé<ad> ")
    engine.refresh(1)
    (completion,) = answer(engine, [Request(chat.encode(" "), 13, 0, 0.0, stop=stop)])
    assert (completion.text, completion.finish) == (reply, finish)
    assert completion.token_ids == chat.encode(reply)
    assert not engine.open


def test_the_end_token_is_kept_in_the_ids_and_not_in_the_text(engine, chat):
    repeat(engine.model, chat, "ok<|end|>")
    engine.refresh(1)
    (one,) = answer(engine, [Request(chat.encode("o"), 9, 0, 0.0, stop=("!",))])
    ids = (*chat.encode("k"), chat.end_ids[0])
    assert (one.token_ids, one.text, one.finish) == (ids, "k", "eos")


def test_a_prompt_that_fills_the_context_gives_an_empty_reply(engine):
    requests = [Request((5,) * length, 4, 0) for length in (CONTEXT, CONTEXT - 2)]
    full, tight = answer(engine, requests)
    assert full == Completion((), (), "", "overflow", 0)
    assert (len(tight.token_ids), tight.finish) == (2, "length")


@pytest.mark.e2e
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (8, 0.7)])
def test_samples_and_logprobs_follow_the_truncated_softmax(top_k, top_p, engine, chat):
    check_samples(engine, make_prompts(1, chat)[0], top_k, top_p, 100)


@pytest.mark.e2e
def test_new_weights_are_used_after_a_refresh_and_not_before(engine, chat):
    requests = [Request(ids, 6, 0, 0.0) for ids in make_prompts(6, chat)]
    before = answer(engine, requests)
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(1.3).add_(0.02)
    still = answer(engine, [replace(request) for request in requests])
    assert tokens_of(still) == tokens_of(before)
    engine.refresh(7)
    for request in requests:
        (reply,) = answer(engine, [replace(request)])
        logits = plain_logits(engine.model, request.prompt_ids + reply.token_ids)
        best = logits[len(request.prompt_ids) - 1 : -1].argmax(-1)
        assert reply.token_ids == tuple(best.tolist())
        assert reply.policy_version == 7


def test_open_replies_start_again_with_the_new_weights(engine, chat):
    request = Request(make_prompts(1, chat)[0], 12, 3, stop=("zz",))
    (whole,) = answer(engine, [replace(request)])
    engine.submit(request)
    assert not [one for _ in range(4) for one in engine.step()]
    engine.refresh(2)
    found: list[tuple[Request, Completion]] = []
    while not found:
        found = engine.step()
    assert found == [(request, replace(whole, policy_version=2))]


def test_weights_of_experts_have_the_names_of_a_checkpoint(chat):
    """transformers holds the experts of a layer in one tensor; a checkpoint and vLLM do not."""
    small = SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**small, vocab_size=300))
    engine = VllmEngine.__new__(VllmEngine)
    engine.model = model
    names = dict(engine._weights())
    assert names["model.layers.0.mlp.experts.3.down_proj.weight"].shape == (64, 32)
    assert not any("gate_up_proj" in name for name in names)


def test_a_model_that_vllm_computes_in_another_way_is_refused(chat, monkeypatch):
    """Here the stand-in of vLLM does not know that this model divides its logits by 4."""
    vllm_toys.install(monkeypatch)
    sizes = SIZES | {"vocab_size": chat.tokenizer.get_vocab_size(), "head_dim": 16}
    model = GraniteForCausalLM(GraniteConfig(**sizes, logits_scaling=4.0)).eval()
    assert VllmEngine(model, chat, slots=2, context=CONTEXT).engine.cache == "auto"
    with pytest.raises(UserError, match=r'"fp8" is for models of at least 1 B'):
        VllmEngine(model, chat, slots=2, context=CONTEXT, cache="fp8")
    monkeypatch.setattr("mage.models.shapes.LEAST_PARAMETERS", 0)
    assert VllmEngine(model, chat, slots=2, context=CONTEXT, cache="fp8").engine.cache == "fp8"
    real = AutoConfig.from_pretrained

    def forget(*words: Any) -> Any:
        config = real(*words)
        config.logits_scaling = 1.0
        return config

    monkeypatch.setattr("vllm_toys.AutoConfig.from_pretrained", forget)
    with pytest.raises(UserError, match=r"vLLM computes other probabilities than Granite.*another"):
        VllmEngine(model, chat, slots=2, context=CONTEXT)
    with pytest.raises(UserError, match=r'differ by .*: use engines.cache = "model"'):
        VllmEngine(model, chat, slots=2, context=CONTEXT, cache="fp8")


def test_a_missing_package_is_one_message(chat, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"needs the package vllm.* pip install '\.\[vllm\]'"):
        VllmEngine(make_model(chat), chat)


def write_folder(folder: Path) -> Path:
    """A model with head_dim 64, a tied embedding and the tokenizer of the embedded model."""
    source = find_model("embedded")
    size = Chat.load(source).tokenizer.get_vocab_size()
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES | {"tie_word_embeddings": True}, vocab_size=size)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


TINY = (
    *("--engines.name=vllm", "--engines.slots=32", "--engines.context=512", "--engines.eager=true"),
    *("--run.updates=2", "--run.workers=1", "--run.threads=1", "--run.evaluate_every=0"),
    *("--run.episodes_every=0", "--run.move_probabilities=false", "--learn.lr=0.01"),
    *("--play.groups=1", "--play.members=2", "--play.episodes=2", "--returns.weights=[0.25, 1.0]"),
    *("--agent.max_tokens=3", "--evaluate.before=false"),
    *("--evaluate.size=1", "--evaluate.final_size=1"),
)


@pytest.mark.e2e
def test_two_updates_with_vllm_have_a_small_mismatch(kind, tmp_path):
    model = f"--model.path={write_folder(tmp_path / 'model')}"
    folder = RunFolder.create(tmp_path / "run", load_recipe("kuhn_poker", [model, *TINY]))
    train(folder.path, Callback(), lambda: False)
    first, second = folder.metrics()
    # The learner's logprobs equal vLLM's, so vLLM had the weights of the first update too.
    assert max(first["mismatch"], second["mismatch"]) < 1e-4
    assert first["gradient_norm"] > 0


def test_ranks_that_share_a_card_use_the_device_of_their_model(monkeypatch):
    """torchrun numbers the ranks of a host; vLLM takes that number as its device."""
    assert choose_executor(torch.device("cuda", 0)) == "uni"  # no process group
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_executor(torch.device("cuda", 0)) == "external_launcher"
    assert os.environ["LOCAL_RANK"] == "0"


def test_the_key_value_pool_is_what_the_share_of_the_gpu_leaves():
    """A card of 100 GB: a share of .5 is 50 GB, minus a tenth, 8 GB of weights and 2 GB."""
    assert pool_size(100 * 10**9, 0.5, 8 * 10**9) == 35 * 10**9
    with pytest.raises(ValueError, match=r"Use at least 0\.16"):
        pool_size(100 * 10**9, 0.1, 8 * 10**9)
