"""Compilation of the learner's layers: few fixed lengths, and no new version for a known length."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from learn_toys import VOCABULARY, make_model
from torch._dynamo.testing import CompileCounter

from mage.config.sections import LearnOptions
from mage.learn.learner import Learner
from mage.learn.pack import layers
from mage.learn.pack.compilation import compile_clock, padded_length
from mage.types import Sample, TurnRef

MICRO = 1024
VERSIONS = 7  # lengths of a micro-batch of up to MICRO tokens


@pytest.fixture
def counter(monkeypatch):
    """Layers compiled without code generation, and lengths padded as on a GPU."""
    torch.compiler.reset()
    made = CompileCounter()
    layer: Callable[..., Any] = torch.compile(layers._layer, dynamic=False, backend=made)
    monkeypatch.setattr(layers, "_layer_for", lambda device: layer)
    monkeypatch.setattr(
        "mage.learn.pack.packer.line_length",
        lambda tokens, micro_tokens, device: padded_length(tokens, micro_tokens, layers.BLOCK),
    )
    yield made
    torch.compiler.reset()


def samples(rows: int, length: int) -> list[Sample]:
    """Rows without a common prefix, so that a micro-batch has rows x length tokens."""
    return [
        Sample(
            tuple((row * 7 + place * (row + 1)) % VOCABULARY for place in range(length - 4)),
            (1, 2, 3, 4),
            (-1.0,) * 4,
            1.0 if row % 2 else -1.0,
            (),
            "play",
            TurnRef(row, 0, 0, 0, "random"),
        )
        for row in range(rows)
    ]


def learner(**options: Any) -> Learner:
    model = make_model(exact=False)
    return Learner(model, LearnOptions(lr=1e-3, micro_tokens=MICRO, **options), layout="trie")


@pytest.mark.e2e
def test_micro_batches_of_any_length_need_at_most_seven_versions(counter):
    made = learner(lora_rank=2, recompute=True)
    for update, (rows, length) in enumerate([(4, 200), (3, 100), (2, 60), (1, 200)]):
        made.update(samples(rows, length), entropy=0.0, update=update)
    for update, (rows, length) in enumerate([(9, 90), (4, 210), (3, 131), (1, 17)], start=4):
        made.update(samples(rows, length), entropy=0.0, update=update)
    before = counter.frame_count
    assert before <= VERSIONS
    made.update(samples(4, 205), entropy=0.0, update=8)
    assert counter.frame_count == before


@pytest.mark.e2e
def test_a_second_micro_batch_of_another_length_is_not_compiled_again(counter):
    """With all weights."""
    made = learner()
    for update, (rows, length) in enumerate([(3, 300), (5, 190)]):
        made.update(samples(rows, length), entropy=0.0, update=update)
        assert counter.frame_count == 1


def test_a_micro_batch_has_one_of_seven_lengths():
    found = {padded_length(tokens, 16_384, 128) for tokens in range(1, 16_385, 97)}
    assert found == {4096, 7168, 9216, 11_264, 13_312, 15_360, 16_384}
    assert padded_length(20_000, 16_384, 128) == 32_768
    assert all(padded_length(tokens, 1000, 128) % 128 == 0 for tokens in (1, 500, 1000, 3000))


def test_above_seven_sixteenths_less_than_a_quarter_of_a_micro_batch_is_padding():
    """The largest step is from 7 to 9 sixteenths."""
    for tokens in range(7168 + 1, 16_385, 31):
        assert 1 - tokens / padded_length(tokens, 16_384, 128) < 2 / 9


@pytest.mark.e2e
def test_the_clock_counts_compilations_and_reports_them():
    compile_clock()
    torch.compiler.reset()  # forgets callbacks; the clock registers again
    clock, lines = compile_clock(), list[str]()
    before = clock.count, clock.seconds
    function = torch.compile(lambda value: value * 2 + 1, backend="eager")
    with clock.reporting(lines.append):
        function(torch.ones(3))
        function(torch.ones(3))
    function(torch.ones(3, 3))  # not reported any more
    assert clock.count == before[0] + 2
    assert clock.seconds > before[1]
    assert len(lines) == 1
    assert lines[0].startswith("compiling")


COMPILER = """
import os, signal, time
from functools import partial
from torch._inductor import config
config.compile_threads = 2
from torch._inductor.async_compile import AsyncCompile
from mage.learn.pack.compilation import start_workers
stopped = []
signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
start_workers()
AsyncCompile.wait_pool_ready()
job = AsyncCompile.process_pool().submit(partial(time.sleep, 4))
os.killpg(0, signal.SIGTERM)
job.result(timeout=120)
print("stopped" if stopped else "not stopped", flush=True)
"""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_stop_signal_to_all_processes_of_a_run_does_not_end_the_compiler():
    command = [sys.executable, "-c", COMPILER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout.readline() == "stopped\n"
            assert process.wait() == 0
        finally:
            process.kill()
    deadline = time.monotonic() + 120
    while is_alive(process.pid):
        assert time.monotonic() < deadline, "a process of the compiler is left"
        time.sleep(0.1)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
