"""Transcripts with credit as a dataset: one row for each turn, as JSON lines, Parquet, or a folder.

The folder (`hf`) holds Parquet files and a card, and `datasets.load_dataset(FOLDER)` reads it.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from mage.run_folder import Json, RunError, RunFolder, write_atomic
from mage.run_folder.files import reading, to_line
from mage.run_folder.turn_files import TurnCredit, read_credits, read_moves
from mage.viewer.runs import stored_names
from mage.viewer.transcripts import count_metas, prompts_or_none, stored_meta

Format = Literal["jsonl", "parquet", "hf"]
_Key = tuple[int, int, int, int]
_TEXTS = ("prompt", "action", "advantage_parts", "move_probabilities")  # may be missing


def write_dataset(folder: RunFolder, target: Path, form: Format) -> int:
    """Write all stored turns of a run; returns the number of rows."""
    if target.exists():
        raise RunError(f"{target} exists already: choose another place with --out")
    with reading(folder.path / "episodes"):
        rows = list(dataset_rows(folder))
    if not rows:
        raise RunError(
            f"{folder.path} holds no meta-episodes; set run.episodes_every in the recipe"
        )
    _WRITERS[form](target, rows, folder)
    return len(rows)


def sets_without_credit(folder: RunFolder) -> list[str]:
    """Stored training updates whose credit file is missing: their rows have no credit."""
    steps = [name for name in stored_names(folder) if name.startswith("step_")]
    return [name for name in sorted(steps) if not read_credits(folder.path, name)]


def sets_without_moves(folder: RunFolder) -> list[str]:
    """Stored sets without move probabilities, if other sets of the run have them."""
    names = sorted(stored_names(folder))
    found = [name for name in names if not read_moves(folder.path, name)]
    return found if len(found) < len(names) else []


def dataset_rows(folder: RunFolder) -> Iterator[Json]:
    """One row for each stored turn, in the order of play; credit is None outside of training."""
    for name in reversed(stored_names(folder)):
        credits: dict[_Key, TurnCredit] = {
            (one.group, one.member, one.episode, one.index): one
            for one in read_credits(folder.path, name)
        }
        moves: dict[_Key, str] = {
            (one.group, one.member, one.episode, one.index): json.dumps(dict(one.moves))
            for one in read_moves(folder.path, name)
        }
        for number in range(count_metas(folder, name)):
            meta = stored_meta(folder, name, number)
            prompts = prompts_or_none(folder, name, number)
            for row in _meta_rows(folder, name, number, meta, prompts, credits):
                place = (row["group"], row["member"], row["episode"], row["turn"])
                yield row | {"move_probabilities": moves.get(place)}


def _meta_rows(
    folder: RunFolder,
    name: str,
    number: int,
    meta: Json,
    prompts: Json | None,
    credits: dict[_Key, TurnCredit],
) -> Iterator[Json]:
    for k, episode in enumerate(meta["episodes"]):
        turns = list(enumerate(episode["turns"]))
        if episode["reflection"] is not None:
            turns = [(-1, episode["reflection"]), *turns]
        for index, turn in turns:
            credit = credits.get((meta["group"], meta["member"], k, index))
            yield {
                "run": folder.path.name,
                "set": name,
                "meta_episode": number,
                **meta["task"],
                "group": meta["group"],
                "member": meta["member"],
                "episode": k,
                "turn": index,
                "kind": turn["kind"],
                "memory": meta["memories"][k],
                "observation": turn["observation"],
                "prompt": _prompt(prompts, k, index),
                **_reply(turn),
                "score": episode["score"],
                "reward": episode["reward"],
                "outcome": episode["outcome"],
                "ending": episode["ending"],
                **_credit(credit),
            }


def _prompt(prompts: Json | None, episode: int, index: int) -> str | None:
    if prompts is None:
        return None
    found = prompts["episodes"][episode]
    return str(found["reflection"] if index < 0 else found["turns"][index])


def _reply(turn: Json) -> Json:
    completion = turn["completion"]
    return {
        "calls": [[call["completion"]["text"], call["result"]] for call in turn.get("calls", ())],
        "reply": completion["text"],
        "action": turn["action"],
        "legal": turn["legal"],
        "finish": completion["finish"],
        "policy_version": completion["policy_version"],
        "token_ids": completion["token_ids"],
        "logprobs": completion["logprobs"],
        "logprob": math.fsum(completion["logprobs"]),
        "penalty": turn["penalty"],
    }


def _credit(credit: TurnCredit | None) -> Json:
    return {
        "return": None if credit is None else credit.value,
        "episode_return": None if credit is None else credit.episode_value,
        "advantage": None if credit is None else credit.advantage,
        "advantage_parts": None if credit is None else json.dumps(credit.parts),
    }


def _write_jsonl(target: Path, rows: list[Json], folder: RunFolder) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, b"".join(to_line(row) + b"\n" for row in rows))


def _write_parquet(target: Path, rows: list[Json], folder: RunFolder) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise RunError(
            "this format needs pyarrow, which is not installed: pip install pyarrow, "
            "or use --format jsonl"
        ) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow.Table.from_pylist(rows).schema
    for place, field in enumerate(schema):
        if arrow.types.is_null(field.type):  # a column without values in this file
            kind = arrow.string() if field.name in _TEXTS else arrow.float64()
            schema = schema.set(place, field.with_type(kind))
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), target)


def _write_folder(target: Path, rows: list[Json], folder: RunFolder) -> None:
    for split in dict.fromkeys(row["split"] for row in rows):
        own = [row for row in rows if row["split"] == split]
        _write_parquet(target / "data" / f"{split}.parquet", own, folder)
    (target / "README.md").write_text(_card(rows, folder), "utf-8")


def _card(rows: list[Json], folder: RunFolder) -> str:
    splits = list(dict.fromkeys(row["split"] for row in rows))
    files = "".join(f"  - split: {one}\n    path: data/{one}.parquet\n" for one in splits)
    return (
        "---\npretty_name: Transcripts of a MAGE run\nconfigs:\n- config_name: default\n"
        f"  data_files:\n{files}---\n\n# Transcripts of {folder.path.name}\n\n"
        f"{len(rows):,} turns in {folder.recipe.environments.name}. One row is one reply of the "
        "agent: a move (`kind` is `play`) or a reflection (`kind` is `reflect`, `turn` is -1).\n\n"
        "`return`, `episode_return`, `advantage` and `advantage_parts` are the credit that "
        "training used; they are null for evaluations. `score` is in units of the game, `reward` "
        "is the task reward of the episode. `move_probabilities` is a JSON object with the "
        "probabilities of the legal moves, null where they were not stored.\n"
    )


_WRITERS: dict[Format, Callable[[Path, list[Json], RunFolder], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "hf": _write_folder,
}
SUFFIXES: dict[Format, Any] = {"jsonl": ".jsonl", "parquet": ".parquet", "hf": ""}
