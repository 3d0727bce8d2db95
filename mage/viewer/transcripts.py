"""Stored meta-episodes as JSON for the page: an index of a file, one meta-episode, its prompts.

Files are read without building records, because a page of 10,000 meta-episodes must open fast. The
tables of contents of the files that were read last stay in memory.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mage.config.errors import ConfigError
from mage.models.base import base_folder
from mage.run_folder import Json, RunFolder
from mage.run_folder.episode_files import COLUMNS, Contents, read_contents, read_member
from mage.run_folder.turn_files import TurnMoves, read_moves
from mage.viewer.runs import stored_names


def read_index(folder: RunFolder, name: str) -> Json:
    """One row for each meta-episode of a file, with the fields that filters need."""
    return {"name": name, "columns": COLUMNS, "rows": _read(folder, name).rows}


def read_group(folder: RunFolder, name: str, group: int) -> list[tuple[int, Json]]:
    """The stored meta-episodes of a group, each with its number in the file."""
    place = COLUMNS.index("group")
    numbers = [row[0] for row in _read(folder, name).rows if row[place] == group]
    return [(number, stored_meta(folder, name, number)) for number in numbers]


def count_metas(folder: RunFolder, name: str) -> int:
    return len(_read(folder, name).rows)


def read_meta(folder: RunFolder, name: str, number: int) -> Json:
    """One meta-episode: tasks, memories, moves, replies with token probabilities."""
    stored, tokenizer = stored_meta(folder, name, number), _tokenizer(folder.path)
    moves = _moves_of(folder, name, stored["group"], stored["member"])
    return {
        "name": name,
        "number": number,
        "count": count_metas(folder, name),
        "task": stored["task"] | {"seed": str(stored["task"]["seed"])},
        "group": stored["group"],
        "member": stored["member"],
        "policy_version": stored["policy_version"],
        "memories": stored["memories"],
        "episodes": [
            _episode(episode, tokenizer, moves.get(k, {}))
            for k, episode in enumerate(stored["episodes"])
        ],
        "has_tokens": tokenizer is not None,
    }


def read_prompts(folder: RunFolder, name: str, number: int) -> Json:
    """The exact prompts of a meta-episode as text: one list for each episode.

    The entry `reflection` of an episode is the prompt of the reflection before it.
    """
    stored, tokenizer = stored_meta(folder, name, number), _tokenizer(folder.path)
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


def prompts_or_none(folder: RunFolder, name: str, number: int) -> Json | None:
    """The prompts, or None if the tokenizer is not on this machine."""
    return None if _tokenizer(folder.path) is None else read_prompts(folder, name, number)


def stored_meta(folder: RunFolder, name: str, number: int) -> Any:
    """A meta-episode as it was stored."""
    path = _path(folder, name)
    contents = _contents(path, path.stat().st_mtime_ns)
    if number >= len(contents.rows):
        raise LookupError(f"{name} holds {len(contents.rows)} meta-episodes")
    member, line = contents.place(number)
    return json.loads(_lines(path, path.stat().st_mtime_ns, member)[line])


def _read(folder: RunFolder, name: str) -> Contents:
    path = _path(folder, name)
    return _contents(path, path.stat().st_mtime_ns)


def _path(folder: RunFolder, name: str) -> Path:
    if name not in stored_names(folder):
        raise LookupError(name)
    return folder.path / "episodes" / f"{name}.jsonl.gz"


@lru_cache(maxsize=64)
def _contents(path: Path, changed: int) -> Contents:
    return read_contents(path)


@lru_cache(maxsize=4)
def _lines(path: Path, changed: int, member: int) -> list[bytes]:
    """One unpacked part of a file."""
    return read_member(path, _contents(path, changed), member)


def _moves_of(
    folder: RunFolder, name: str, group: int, member: int
) -> dict[int, dict[int, TurnMoves]]:
    """The stored probabilities of a meta-episode: by episode, then by turn."""
    path = folder.path / "episodes" / f"{name}.moves.jsonl.gz"
    if not path.is_file():
        return {}
    found: dict[int, dict[int, TurnMoves]] = {}
    for one in _cached_moves(folder.path, name, path.stat().st_mtime_ns).get((group, member), ()):
        found.setdefault(one.episode, {})[one.index] = one
    return found


@lru_cache(maxsize=4)
def _cached_moves(run: Path, name: str, changed: int) -> dict[tuple[int, int], list[TurnMoves]]:
    found: dict[tuple[int, int], list[TurnMoves]] = {}
    for one in read_moves(run, name):
        found.setdefault((one.group, one.member), []).append(one)
    return found


@lru_cache(maxsize=64)
def _tokenizer(run: Path) -> Tokenizer | None:
    """The tokenizer of the model; None if the model is not on this machine."""
    try:
        path = base_folder(RunFolder.open(run).recipe, download=False) / "tokenizer.json"
    except (ConfigError, ValueError, OSError):
        return None
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def _episode(stored: Json, tokenizer: Tokenizer | None, moves: dict[int, TurnMoves]) -> Json:
    plain = {
        name: stored[name]
        for name in ("moves", "score", "reward", "outcome", "ending", "recap", "regret")
    }
    reflection = stored["reflection"]
    return plain | {
        "bonuses": stored.get("bonuses", []),
        "reflection": None if reflection is None else _turn(reflection, tokenizer, None),
        "turns": [
            _turn(turn, tokenizer, moves.get(index)) for index, turn in enumerate(stored["turns"])
        ],
    }


def _turn(stored: Json, tokenizer: Tokenizer | None, moves: TurnMoves | None) -> Json:
    completion = stored["completion"]
    plain = {
        name: stored[name]
        for name in ("kind", "anchor", "observation", "action", "legal", "penalty")
    }
    return plain | {
        "calls": [_call(call, tokenizer) for call in stored.get("calls", ())],
        "text": completion["text"],
        "finish": completion["finish"],
        "prompt_tokens": len(stored["prompt_ids"]),
        "tokens": None if tokenizer is None else _tokens(completion, tokenizer),
        "choices": None if tokenizer is None else _choices(stored, tokenizer),
        "chances": None if moves is None else _chances(moves),
    }


def _call(stored: Json, tokenizer: Tokenizer | None) -> Json:
    """A reply that called a tool, and the result."""
    completion = stored["completion"]
    return {
        "text": completion["text"],
        "tokens": None if tokenizer is None else _tokens(completion, tokenizer),
        "result": stored["result"],
        "failed": stored["failed"],
    }


def _chances(moves: TurnMoves) -> Json:
    """All legal moves of a turn with their probabilities."""
    return {"count": moves.count, "legal": moves.legal, "moves": moves.moves}


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
