"""Errors of the accelerator, turned into messages: what happened, what is safe, what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mage.config.errors import DeviceError
from mage.learn import checkpoint
from mage.run_folder import RunFolder

ACCELERATOR_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
)


@contextmanager
def explain_device_errors(folder: RunFolder) -> Iterator[None]:
    """Raise `DeviceError` with advice instead of torch's own error."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(_out_of_memory(folder, error)) from error
    except ACCELERATOR_ERRORS as error:
        first = str(error).splitlines()[0]
        raise DeviceError(f"the GPU reported an error: {first}\n{_saved_state(folder)}") from error


def _out_of_memory(folder: RunFolder, error: torch.OutOfMemoryError) -> str:
    learn = folder.recipe.learn
    advice = [
        f"learn.micro_tokens (now {learn.micro_tokens or 'chosen by the run'})",
        "engines.slots or engines.context",
    ]
    less = "learn.graphs = false" if learn.graphs else "learn.recompute = true"
    recompute = "" if learn.recompute else f"; {less} also needs less memory"
    return (
        f"out of GPU memory: {str(error).splitlines()[0]}\n"
        f"In {folder.path / 'recipe.toml'} lower {' or '.join(advice)}{recompute}.\n"
        f"{_saved_state(folder)}"
    )


def _saved_state(folder: RunFolder) -> str:
    found = checkpoint.latest(folder.checkpoints).path
    if found is None:
        return "No checkpoint was written yet."
    return f"The checkpoint of update {checkpoint.update_of(found)} is whole."
