"""Stored meta-episodes as JSON for the page: an index of a file, one meta-episode, its prompts.

Files are read without building records, because a page of 10,000 meta-episodes must open fast. The
lines of the files that were read last stay in memory.
"""

import json
import math
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mage.config.errors import ConfigError
from mage.run_folder import Json, RunFolder
from mage.run_folder.files import read_packed
from mage.viewer.runs import stored_names

FILES_KEPT = 3
_NUMBERS = re.compile(rb'"(prompt_ids|logprobs)":\[[^\]]*\]')
COLUMNS = (
    "number",
    "group",
    "member",
    "opponent",
    "seat",
    "seed",
    "scores",
    "outcomes",
    "gain",
    "illegal",
    "cut_off",
    "replies",
    "tokens",
    "reflects",
)


class Transcripts:
    """Reads stored meta-episodes; keeps the newest files and tokenizers in memory."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[Path, int], list[bytes]] = OrderedDict()
        self._indices: dict[tuple[Path, int], Json] = {}
        self._tokenizers: dict[Path, Tokenizer | None] = {}

    def index(self, folder: RunFolder, name: str) -> Json:
        """One row for each meta-episode of a file, with the fields that filters need."""
        path = self._path(folder, name)
        key = (path, path.stat().st_mtime_ns)
        if key not in self._indices:
            lines = enumerate(self._lines(folder, name))
            rows = [_index_row(number, json.loads(_without_ids(line))) for number, line in lines]
            self._indices[key] = {"name": name, "columns": COLUMNS, "rows": rows}
        return self._indices[key]

    def group(self, folder: RunFolder, name: str, group: int) -> list[tuple[int, Json]]:
        """The stored meta-episodes of a group, each with its number in the file."""
        lines = self._lines(folder, name)
        start = f'"group":{group},'.encode()
        found = [(number, json.loads(line)) for number, line in enumerate(lines) if start in line]
        return [(number, meta) for number, meta in found if meta["group"] == group]

    def count(self, folder: RunFolder, name: str) -> int:
        return len(self._lines(folder, name))

    def meta(self, folder: RunFolder, name: str, number: int) -> Json:
        """One meta-episode: tasks, memories, moves, replies with token probabilities."""
        stored, tokenizer = self.stored(folder, name, number), self._tokenizer(folder)
        return {
            "name": name,
            "number": number,
            "count": self.count(folder, name),
            "task": stored["task"] | {"seed": str(stored["task"]["seed"])},
            "group": stored["group"],
            "member": stored["member"],
            "policy_version": stored["policy_version"],
            "memories": stored["memories"],
            "episodes": [_episode(episode, tokenizer) for episode in stored["episodes"]],
            "has_tokens": tokenizer is not None,
        }

    def prompts(self, folder: RunFolder, name: str, number: int) -> Json:
        """The exact prompts of a meta-episode as text: one list for each episode.

        The entry `reflection` of an episode is the prompt of the reflection before it.
        """
        stored, tokenizer = self.stored(folder, name, number), self._tokenizer(folder)
        if tokenizer is None:
            raise LookupError("the tokenizer of this run is not on this machine")
        return {
            "episodes": [
                {
                    "reflection": None
                    if episode["reflection"] is None
                    else _decode(tokenizer, episode["reflection"]["prompt_ids"]),
                    "turns": [_decode(tokenizer, turn["prompt_ids"]) for turn in episode["turns"]],
                }
                for episode in stored["episodes"]
            ]
        }

    def prompts_or_none(self, folder: RunFolder, name: str, number: int) -> Json | None:
        """The prompts, or None if the tokenizer is not on this machine."""
        return None if self._tokenizer(folder) is None else self.prompts(folder, name, number)

    def stored(self, folder: RunFolder, name: str, number: int) -> Any:
        """A meta-episode as it was stored."""
        lines = self._lines(folder, name)
        if number >= len(lines):
            raise LookupError(f"{name} holds {len(lines)} meta-episodes")
        return json.loads(lines[number])

    def _lines(self, folder: RunFolder, name: str) -> list[bytes]:
        path = self._path(folder, name)
        key = (path, path.stat().st_mtime_ns)
        if key not in self._files:
            self._files[key] = read_packed(path)
            while len(self._files) > FILES_KEPT:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return self._files[key]

    def _path(self, folder: RunFolder, name: str) -> Path:
        if name not in stored_names(folder):
            raise LookupError(name)
        return folder.path / "episodes" / f"{name}.jsonl.gz"

    def _tokenizer(self, folder: RunFolder) -> Tokenizer | None:
        if folder.path not in self._tokenizers:
            self._tokenizers[folder.path] = _load_tokenizer(folder)
        return self._tokenizers[folder.path]


def _without_ids(line: bytes) -> bytes:
    """A stored line without its long lists of numbers, which an index does not need.

    A quote inside of a JSON string is escaped, so no text of a model matches the pattern.
    """
    return _NUMBERS.sub(rb'"\1":[]', line)


def _load_tokenizer(folder: RunFolder) -> Tokenizer | None:
    """The tokenizer of the model; None if the model is not on this machine."""
    try:
        path = folder.recipe.base_folder() / "tokenizer.json"
    except (ConfigError, ValueError, OSError):
        return None
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def _index_row(number: int, stored: Json) -> list[Any]:
    episodes, task = stored["episodes"], stored["task"]
    turns = [turn for episode in episodes for turn in episode["turns"]]
    scores = [episode["score"] for episode in episodes]
    return [
        number,
        stored["group"],
        stored["member"],
        task["opponent"],
        task["seat"],
        str(task["seed"]),
        scores,
        "".join(episode["outcome"][0] for episode in episodes),
        scores[-1] - scores[0],
        sum(not turn["legal"] for turn in turns),
        sum(turn["completion"]["finish"] == "length" for turn in turns),
        len(turns),
        sum(len(turn["completion"]["token_ids"]) for turn in turns),
        sum(episode["reflection"] is not None for episode in episodes),
    ]


def _episode(stored: Json, tokenizer: Tokenizer | None) -> Json:
    plain = {
        name: stored[name]
        for name in ("moves", "score", "reward", "outcome", "ending", "recap", "regret")
    }
    reflection = stored["reflection"]
    return plain | {
        "reflection": None if reflection is None else _turn(reflection, tokenizer),
        "turns": [_turn(turn, tokenizer) for turn in stored["turns"]],
    }


def _turn(stored: Json, tokenizer: Tokenizer | None) -> Json:
    completion = stored["completion"]
    plain = {
        name: stored[name]
        for name in ("kind", "anchor", "observation", "action", "legal", "penalty")
    }
    return plain | {
        "text": completion["text"],
        "finish": completion["finish"],
        "prompt_tokens": len(stored["prompt_ids"]),
        "tokens": None if tokenizer is None else _tokens(completion, tokenizer),
        "choices": None if tokenizer is None else _choices(stored, tokenizer),
    }


def _tokens(completion: Json, tokenizer: Tokenizer) -> list[list[Any]]:
    """Text and probability of every token of a reply."""
    ids, logprobs = completion["token_ids"], completion["logprobs"]
    texts = [_token_text(ids, place, tokenizer) for place in range(len(ids))]
    return [[text, _probability(logprob)] for text, logprob in zip(texts, logprobs, strict=False)]


def _token_text(ids: list[int], place: int, tokenizer: Tokenizer) -> str:
    """One token with its leading space: the difference that it makes after the token before it."""
    alone = _decode(tokenizer, ids[max(0, place - 1) : place])
    return _decode(tokenizer, ids[max(0, place - 1) : place + 1])[len(alone) :]


def _choices(stored: Json, tokenizer: Tokenizer) -> list[Json]:
    """The places of a reply where legal moves differ, with the alternatives and the chosen one."""
    completion = stored["completion"]
    return [
        {
            "place": place,
            "options": [_decode(tokenizer, [token]) for token in options],
            "chosen": _decode(tokenizer, [completion["token_ids"][place]]),
            "probability": _probability(completion["logprobs"][place]),
        }
        for place, options in stored["choices"]
        if place < min(len(completion["token_ids"]), len(completion["logprobs"]))
    ]


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else math.exp(min(0.0, logprob))


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))
