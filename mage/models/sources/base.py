"""The contract of a model source, and what sources share."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

from mage.config.errors import UserError
from mage.run_folder.files import file_digest

Say = Callable[[str], None]
Dtype = Literal["float32", "bfloat16"]


class Source(ABC):
    """A place that models come from: one class in one file of `sources/`.

    `what` is the argument of `mage model add`.
    """

    title: ClassVar[str]  # shown by `mage model list`
    is_named: ClassVar[bool] = False  # True: one fixed model, added by its name

    def __init__(self, what: str) -> None:
        self.what = what

    @classmethod
    @abstractmethod
    def takes(cls, what: str) -> bool:
        """Whether this source handles the argument `what`."""

    @abstractmethod
    def name(self) -> str:
        """The default name of the model."""

    @abstractmethod
    def write(self, folder: Path, dtype: Dtype | None, template: str | None, say: Say) -> str:
        """Write the model into an empty folder; returns one line that says where it comes from.

        `dtype = None` and `template = None` keep those of the source.
        """


class NamedSource(Source):
    """One fixed model, which is added by its name."""

    is_named = True
    model: ClassVar[str]

    @classmethod
    def takes(cls, what: str) -> bool:
        return what == cls.model

    def name(self) -> str:
        return self.model


def copy_permissions(weights: Path, like: Path) -> None:
    """Copy the permissions of a neighbouring file; safetensors makes files for the owner only."""
    shutil.copymode(like, weights)


def check_sha256(path: Path, expected: str) -> None:
    """Raise ValueError unless the file has this checksum."""
    found = file_digest(path)
    if found != expected:
        raise UserError(
            f"{path} has the wrong content: its sha256 is {found}, expected {expected}. "
            "Remove the file and get it again"
        )
