"""Learning on a GPU: a prefix trie with FlexAttention against padded rows through transformers.

The rows are those of 16 x 8 scripted meta-episodes of Tic-Tac-Toe (three episodes, notes) with the
tokenizer of SmolLM2 if it is installed, otherwise of the embedded model. With long replies every
reply is 250 random tokens. A 135 M Llama with random weights, bfloat16 with float32 masters, whole
`Learner.update` calls. Utilisation counts 6 operations per weight and computed token (for the head:
per reply token) against the card's dense bfloat16 peak, without attention and recomputed work.

Then the peak memory of an update for models of 4 B to 135 M parameters, with all weights or with
adapters of rank 16. Two micro-batches are enough for that. The first update creates the optimizer
state, so the second one has the peak.
"""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from benchmarks.cuda_engine import SMOLLM2, random_model, walled
from benchmarks.measure import Comparison, Skipped, relate, take_turns
from mage.agent.agent import Agent, SamplingOptions
from mage.agent.chat import Chat
from mage.config.sections import LearnOptions
from mage.engines.base import ScriptedEngine
from mage.environments.tic_tac_toe import TicTacToe
from mage.learn.demonstrations import write_demonstrations
from mage.learn.learner import Learner
from mage.learn.packing import Layout
from mage.learn.tries import prepare
from mage.learn.update_metrics import Metrics
from mage.memory.notes import Notes
from mage.models.base import find_model
from mage.play import Setting
from mage.types import Sample, Task

TARGETS = {"short replies": 3.0, "replies of 250 tokens": 2.0}
PEAK = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
}  # dense bfloat16, from the data sheets
SHAPES: dict[str, dict[str, Any]] = {
    "135 M": SMOLLM2,
    "360 M": SMOLLM2
    | {
        "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 15, "num_key_value_heads": 5,
    },
    "1.7 B": SMOLLM2
    | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    },
    "4 B": {
        "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work; tests use less."""

    device: str = "cuda"
    layers: int = 30
    groups: int = 16
    members: int = 8
    micro_tokens: int = 32_768
    rounds: int = 2
    shapes: tuple[str, ...] = tuple(reversed(SHAPES))  # the largest first


def measure(size: Size | None = None) -> Iterator[Comparison | str]:
    """Samples per second, and peak memory."""
    if size is None and not torch.cuda.is_available():
        raise Skipped("needs a CUDA device")
    size = size or Size()
    for case in TARGETS:
        yield _against_rows(case, size)
    yield from peak_memory(size)


def make_rows(groups: int, members: int, long: bool, vocabulary: int = 49_152) -> list[Sample]:
    """Training rows of scripted meta-episodes with advantages of +1 and -1."""
    try:
        chat = Chat.load(find_model("smollm2"))
    except ValueError:
        chat = Chat.load(find_model("embedded"))
    rng = random.Random(0)
    agent = Agent(
        ScriptedEngine(lambda request: "", chat.encode),
        chat,
        SamplingOptions(max_tokens=32, reflection_tokens=128),
    )
    setting = Setting(TicTacToe(), agent, Notes(keep="reflections"), episodes=3)
    tasks = [
        Task("tic_tac_toe", 1000 + group, group % 2, "random", "train")
        for group in range(groups)
        for _ in range(members)
    ]
    samples = []
    for demonstration in write_demonstrations(setting, tasks, 5):
        sample = demonstration.sample()
        where = replace(
            sample.where, group=sample.where.group // members, member=sample.where.group % members
        )
        reply = (
            tuple(rng.randrange(3, vocabulary) for _ in range(250)) if long else sample.reply_ids
        )
        choices = () if long else sample.choices
        old = (-10.8,) * len(reply)  # about the logprob of a token under random weights
        samples.append(
            replace(
                sample,
                reply_ids=reply,
                old_logprobs=old,
                choices=choices,
                where=where,
                advantage=rng.choice((-1.0, 1.0)),
            )
        )
    return samples


def _against_rows(case: str, size: Size) -> Comparison:
    samples = make_rows(size.groups, size.members, long=case != "short replies")
    ways: tuple[Layout, Layout] = ("trie", "rows")
    learners = [_learner(size, layout) for layout in ways]
    rows = prepare(samples[:100])
    difference = (learners[0].logprobs(rows) - learners[1].logprobs(rows)).abs().mean()
    found: dict[str, Metrics] = {}

    def update(name: str, learner: Learner) -> None:
        found[name] = learner.update(samples, entropy=0.1, update=0)

    works = [
        walled(partial(update, name, learner), size.device)
        for name, learner in zip(ways, learners, strict=True)
    ]
    seconds = take_turns(works, size.rounds)
    line = relate("cuda learner", case, ("trie", "rows"), "samples", len(samples), *seconds)
    trie = found["trie"]
    loss = abs(trie.policy_loss - found["rows"].policy_loss)
    rate = line.ours / len(samples)
    shares = [
        utilisation(learners[0].module, trie, rate),
        utilisation(learners[1].module, found["rows"], line.theirs / len(samples)),
    ]
    note = (
        f"{trie.row_tokens / trie.computed_tokens:.1f} times fewer tokens; "
        f"{trie.computed_tokens * rate:,.0f} computed tokens/s, "
        f"utilisation {shares[0]:.0%} and {shares[1]:.0%}; "
        f"difference of loss {loss:.0e}, of bfloat16 logprobs {difference:.0e}"
    )
    return replace(line, target=TARGETS[case] if size.device == "cuda" else None, note=note)


def _learner(size: Size, layout: Layout) -> Learner:
    model = random_model(SMOLLM2, size.device, num_hidden_layers=size.layers)
    return Learner(model, LearnOptions(lr=1e-6, micro_tokens=size.micro_tokens), layout=layout)


def utilisation(model: PreTrainedModel, metrics: Metrics, rate: float) -> float:
    """Share of the card's peak at `rate` updates per second."""
    if model.device.type != "cuda":
        return 0.0
    peak = PEAK.get(torch.cuda.get_device_name(), float("nan"))
    head = model.get_output_embeddings().weight.numel()
    layers = sum(value.numel() for value in model.get_decoder().layers.parameters())
    return 6 * (layers * metrics.computed_tokens + head * metrics.reply_tokens) * rate / peak


def peak_memory(size: Size) -> Iterator[str]:
    """Updates of a model of every shape, all weights and adapters."""
    samples = make_rows(1, size.members, long=True)
    for name in size.shapes:
        for rank in (0, 16):
            yield _peak(name, rank, samples, size)


def _peak(name: str, rank: int, samples: list[Sample], size: Size) -> str:
    if size.device == "cuda":
        forget()
    shape = SHAPES[name] | ({"num_hidden_layers": size.layers} if size.device != "cuda" else {})
    model = random_model(shape, size.device, Qwen3Config if name == "4 B" else LlamaConfig)
    count = sum(value.numel() for value in model.parameters())
    learner = Learner(
        model,
        LearnOptions(lr=1e-6, micro_tokens=size.micro_tokens // 2, recompute=True, lora_rank=rank),
        layout="trie",
    )
    first = walled(lambda: learner.update(samples, entropy=0.1, update=0), size.device)()
    began = time.perf_counter()
    metrics = learner.update(samples, entropy=0.1, update=1)
    taken = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() / 1e9 if size.device == "cuda" else float("nan")
    what = "all weights    " if rank == 0 else f"LoRA of rank {rank}"
    share = utilisation(learner.module, metrics, 1 / taken)
    speed = f"{metrics.computed_tokens / taken:9,.0f} computed tokens/s, utilisation {share:.0%}"
    how = (
        f"{count / 1e6:,.0f} M, recompute, {size.micro_tokens // 2} tokens at once, "
        f"{taken:.1f} s after a first update of {first:.1f} s"
    )
    return f"cuda learner {name:>6} {what}: peak {peak:6.1f} GB, {speed} ({how})"


def forget() -> None:
    """Free the previous model and its compiled functions; only few shapes are compiled at once."""
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
