"""Where the time of an update goes on a GPU: 16 x 8 meta-episodes of Tic-Tac-Toe with SmolLM2.

It runs the trainer itself. Needs `mage model add smollm2`; the result of `mage warmup
smollm2_tic_tac_toe` (runs/smollm2_tic_tac_toe-warm) is used if it exists.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from benchmarks.measure import Skipped
from mage.config.loading import load_recipe
from mage.models.base import find_model
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.trainer import train

WARM = Path("runs/smollm2_tic_tac_toe-warm")
TARGET = 15.0


def measure(
    updates: int = 5, device: str = "cuda", model: str | None = None, *changes: str
) -> Iterator[str]:
    """Seconds of an update by stage, without the first two updates, which compile kernels."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Skipped("needs a CUDA device")
    path = model or (str(WARM) if WARM.is_dir() else "smollm2")
    try:
        find_model(path)
    except ValueError as missing:
        raise Skipped(str(missing)) from None
    with tempfile.TemporaryDirectory() as place:
        given = [
            f"--model.path={path}",
            f"--run.updates={updates}",
            "--run.evaluate_every=0",
            "--evaluate.size=8",
            "--evaluate.final_size=8",
            f"--run.device={device}",
        ]
        folder = RunFolder.create(
            Path(place) / "run", load_recipe("smollm2_tic_tac_toe", [*given, *changes])
        )
        train(folder.path, Callback(), lambda: False)
        timing = folder.timing()[min(2, updates - 1) :]
        metrics = [
            json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()
        ]
    middle = {
        name: median(float(record[name]) for record in timing)
        for name in timing[0]
        if name != "update"
    }
    engine, waited = middle["play_engine"], middle["play_gpu_wait"]
    yield (
        f"an update of {metrics[-1]['samples']} samples, "
        f"{metrics[-1]['reply_tokens']:,} reply tokens: {middle['total']:.2f} s"
        + (
            ""
            if device != "cuda"
            else f" (target {TARGET:g})"
            if middle["total"] <= TARGET
            else f" MISSED: target {TARGET:g}"
        )
    )
    for name, seconds in (
        ("play: waiting for the GPU", waited),
        ("play: engine, on the host", engine - waited),
        ("play: games, prompts, opponents", middle["play"] - engine),
        ("credit", middle["credit"]),
        ("learn", middle["learn"]),
    ):
        yield f"  {name:32} {seconds:6.2f} s  {seconds / middle['total']:4.0%}"
    last = metrics[-1]
    yield (
        f"  sampler and learner: mean |difference of logprobs| {last['mismatch']:.4f}; "
        f"illegal {last['illegal_rate']:.0%}; all updates: "
        + ", ".join(f"{record['total']:.1f}" for record in timing)
    )
