"""ORG/NAME on the model hub, through huggingface_hub with its cache, settings and tokens."""

import re
from pathlib import Path

from mage.config.errors import UserError
from mage.models.sources.base import Dtype, Say, Source
from mage.models.sources.folder import COPIED, copy_folder


class Hub(Source):
    title = "ORG/NAME on the model hub, with safetensors"

    @classmethod
    def takes(cls, what: str) -> bool:
        return (
            re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", what) is not None and not Path(what).exists()
        )

    def name(self) -> str:
        return self.what.split("/")[1]

    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        say(f"asking the model hub for {self.what}")
        try:
            found = snapshot_download(
                self.what, allow_patterns=[*COPIED, "*.safetensors", "LICEN*", "NOTICE*"]
            )
        except LocalEntryNotFoundError as error:
            raise UserError(
                f"there is no folder {self.what} here, and the model hub cannot be reached "
                f"({_first_line(error)})"
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(
                f"there is no folder {self.what} here, and the model hub refuses it: "
                f"{_first_line(error)}"
            ) from None
        copy_folder(Path(found), folder, dtype, template, say)
        return f"{self.what} on the model hub"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].removeprefix("Got: ")
