"""Add a model: write its folder from a source and test it with one question. Loads torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.config.menus import find_item
from mage.engines.base import run
from mage.models.base import (
    ORIGIN,
    Model,
    atomic_folder,
    check_name,
    find_source,
    models_folder,
    read_model,
    restore_folder,
)
from mage.models.loading import load_model
from mage.models.sources.base import Dtype, Say
from mage.types import Request

_REPLY = 24  # tokens of the test answer


@dataclass(frozen=True, slots=True)
class Added:
    """The result of `add_model`. `line` is the test answer, or None if the model existed before."""

    model: Model
    line: str | None


def add_model(
    what: str,
    *,
    name: str | None = None,
    out: Path | None = None,
    dtype: Dtype | None = None,
    template: str | None = None,
    force: bool = False,
    say: Say = lambda line: None,
) -> Added:
    """Write a model folder from a source and test it. An existing one is kept unless `force`."""
    source = find_source(what)
    place = out.expanduser() if out else models_folder() / check_name(name or source.name())
    restore_folder(place)
    if place.exists() and not force:
        if not (place / "config.json").is_file():
            raise UserError(
                f"{place} exists and is not a model folder: choose another place, "
                "or overwrite it with --force"
            )
        return Added(read_model(place), None)
    with atomic_folder(place) as folder:
        origin = source.write(folder, dtype, template, say)
        (folder / ORIGIN).write_text(json.dumps({"origin": origin}, indent=2) + "\n")
        say("testing the model with one question")
        line = answer_line(folder)
    return Added(read_model(place), line)


def answer_line(folder: Path) -> str:
    """The most likely answer of the model, computed by MAGE's own engine on the CPU.

    A folder that passes this test can be played and trained.
    """
    chat = Chat.load(folder)
    model = load_model(folder, "float32", "cpu")
    tokens, rows = chat.tokenizer.get_vocab_size(), model.get_input_embeddings().weight.shape[0]
    if tokens > rows:
        raise UserError(
            f"the tokenizer in {folder} has {tokens:,} tokens, but the model has {rows:,} "
            "embeddings: the files do not belong together"
        )
    engine = find_item("engines", "local")(model, chat, slots=1, context=256)
    prompt = chat.first("You are a helpful assistant.", "What is the capital of France?")

    async def answer() -> str:
        return str((await engine.sample(Request(prompt, _REPLY, seed=0, temperature=0))).text)

    (text,) = run([answer()])
    if not text.strip():
        raise UserError(
            f"the model in {folder} gives an empty answer: its weights, its tokenizer and its "
            "chat template do not belong together"
        )
    return " ".join(text.split())
