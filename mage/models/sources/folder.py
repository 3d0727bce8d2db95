"""A local transformers folder: its files are copied; weights may change their dtype."""

import json
import shutil
from pathlib import Path

from mage.config.errors import UserError
from mage.models.checks import check_folder, read_object
from mage.models.sources.base import Dtype, Say, Source, copy_permissions

_INDEX = "model.safetensors.index.json"
_ENDING = ".safetensors"
_LICENCES = ("LICENSE", "LICENCE", "NOTICE")
COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    _INDEX,
)


class Folder(Source):
    title = "a folder with a transformers checkpoint in safetensors"

    @classmethod
    def takes(cls, what: str) -> bool:
        return Path(what).expanduser().is_dir()

    def name(self) -> str:
        return Path(self.what).expanduser().resolve().name

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        path = Path(self.what).expanduser().resolve()
        copy_folder(path, folder, dtype, template, say)
        return str(path)


def copy_folder(
    source: Path, folder: Path, dtype: Dtype | None, template: str | None, say: Say
) -> None:
    """Copy a checkpoint. `dtype` and `template`, if given, replace those of the checkpoint."""
    for name in ("config.json", "tokenizer.json"):
        if not (source / name).is_file():
            raise UserError(f"{source} has no {name}: a model folder needs it")
    weights = _weight_files(source)
    if not weights:
        raise UserError(
            f"{source} has no *.safetensors: a model folder needs its weights in that format"
        )
    template = template or _template(source)
    check_folder(source)
    licences = [path.name for path in source.iterdir() if path.name.upper().startswith(_LICENCES)]
    for name in (*COPIED, *licences):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    (folder / "chat_template.jinja").write_text(template)
    say(f"copying {sum(path.stat().st_size for path in weights) / 1e6:,.0f} MB of weights")
    for path in weights:
        _copy_weights(path, folder / path.name, dtype)
    if dtype:
        config = read_object(folder / "config.json")
        (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")


def _template(source: Path) -> str:
    """The chat template: a file, or a key of the tokenizer config (a text, or several by name)."""
    file, config = source / "chat_template.jinja", source / "tokenizer_config.json"
    if file.is_file():
        return file.read_text()
    given = read_object(config).get("chat_template") if config.is_file() else None
    if isinstance(given, list):
        named = [one for one in given if isinstance(one, dict) and one.get("name") == "default"]
        given = named[0].get("template") if named else None
    if not isinstance(given, str) or not given:
        raise UserError(
            f"{source} has no chat template: give one with --template FILE "
            "(jinja, as in a chat_template.jinja)"
        )
    return given


def _weight_files(source: Path) -> list[Path]:
    """The files of the index if there is one: some folders hold the weights in a second layout."""
    if (source / _INDEX).is_file():
        places = read_object(source / _INDEX).get("weight_map")
        names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
        if not names or any(
            Path(name).name != name or not name.endswith(_ENDING) for name in names
        ):
            raise UserError(
                f"{source / _INDEX} must name *.safetensors files of its own folder in weight_map"
            )
        return [source / name for name in names]
    one = source / "model.safetensors"
    return [one] if one.is_file() else sorted(source.glob("*.safetensors"))


def _copy_weights(source: Path, target: Path, dtype: Dtype | None) -> None:
    if dtype is None:
        shutil.copyfile(source, target)
        return
    import torch
    from safetensors.torch import load_file, save_file

    number = getattr(torch, dtype)
    tensors = {
        name: tensor.to(number) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source).items()
    }
    save_file(tensors, target, metadata={"format": "pt"})
    copy_permissions(target, target.parent / "config.json")
