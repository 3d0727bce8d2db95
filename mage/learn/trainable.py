"""What an optimizer moves, and how that reaches the module that plays: all weights, or adapters of low rank (LoRA).

Adapters are no modules here: a layer's weight is W = W0 + scale * B A, written into the module whenever A and B have moved, and
its gradient is projected onto them. So sampler and learner compute one plain model, as fast as without adapters; what is saved
is the optimizer's memory and the size of what is kept. The files are those of PEFT, which other tools read.
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from mage.models.base import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of, share
from mage.seeds import derive

_PREFIX = "base_model.model."  # of every name in a file of PEFT
_AT_ONCE = 2**25  # weights of layers that are stepped together: 128 MB in float32


class AllWeights:
    """Every weight, with a float32 master where the module's own are of half precision: most steps are smaller than those can show."""

    def __init__(self, model: PreTrainedModel, *, reference: bool = False) -> None:
        self.model = model
        self.masters = {name: _master(value) for name, value in model.named_parameters() if value.requires_grad}
        self._reference = copy.deepcopy(model).eval().requires_grad_(False) if reference else None

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradient of a micro-batch to the masters' in float32: a sum in half precision would drop what is small."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master and parameter.grad is not None:
                _add_gradient(master, parameter.grad.to(master.dtype))
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Bring the masters into the module."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master:
                parameter.copy_(master)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start."""
        assert self._reference is not None, "a KL coefficient makes a reference"
        yield self._reference


class Adapters:
    """A and B of every linear layer but the output head. They start as no change, or where a folder of PEFT says."""

    def __init__(self, model: PreTrainedModel, rank: int, alpha: float, *, seed: int = 0, start: Path | None = None) -> None:
        self.model, self.rank, self.alpha = model, rank, alpha
        model.requires_grad_(False)
        names = linear_layers(model)
        values = _read(start, model, names, rank, alpha) if start else _fresh(model, names, rank, seed)
        base = _base_weights(model, names, start)
        self._stacks = [_Stack(model, some, values, base, alpha / rank) for some in _alike(model, names)]
        self.masters = {name: value for stack in self._stacks for name, value in stack.masters.items()}
        self.publish()

    @torch.no_grad()
    def collect(self) -> None:
        """Project the gradient of a micro-batch onto A and B."""
        for stack in self._stacks:
            stack.collect()

    def publish(self) -> None:
        """Bring W0 + scale * B A into the module."""
        for stack in self._stacks:
            stack.write(stack.down, stack.up)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start; it is the policy again afterwards."""
        for stack in self._stacks:
            stack.write(*stack.start)
        try:
            yield self.model
        finally:
            self.publish()


class _Stack:
    """Layers of one shape, their A and B side by side: a step over all of them is a few kernels and not a few a layer.

    What the optimizer moves are parts of the stacks, so that layers keep their names.
    """

    def __init__(self, model: PreTrainedModel, names: list[str], values: Mapping[str, Tensor], base: Mapping[str, Tensor], scale: float) -> None:
        self.scale = scale
        self.weights = [model.get_parameter(f"{name}.weight").requires_grad_(True) for name in names]
        self.base = torch.stack([base[name].to(model.device, model.dtype) for name in names])
        self.down, self.up = (torch.stack([values[key(name)] for name in names]) for key in (_down, _up))
        self.start = self.down.clone(), self.up.clone()
        self._parts = [[torch.nn.Parameter(part) for part in stack] for stack in (self.down, self.up)]
        self.masters = {key(name): part for key, parts in zip((_down, _up), self._parts, strict=True) for name, part in zip(names, parts, strict=True)}

    def collect(self) -> None:
        given = [weight.grad for weight in self.weights]
        if not any(gradient is not None for gradient in given):
            return
        whole = [torch.zeros_like(weight) if gradient is None else gradient for gradient, weight in zip(given, self.weights, strict=True)]
        gradient = torch.stack(whole).to(self.down.dtype)
        for parts, slope in zip(self._parts, (self.up.mT @ gradient, gradient @ self.down.mT), strict=True):
            slope.mul_(self.scale)
            if parts[0].grad is not None:
                torch._foreach_add_([part.grad for part in parts], list(slope))
                continue
            for part, own in zip(parts, slope, strict=True):
                part.grad = own
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def write(self, down: Tensor, up: Tensor) -> None:
        torch._foreach_copy_(self.weights, list(torch.baddbmm(self.base.to(down.dtype), up, down, alpha=self.scale)))


def _alike(model: PreTrainedModel, names: list[str]) -> list[list[str]]:
    """Layers of equal shape together, in pieces of which a copy in float32 takes little memory."""
    found: dict[torch.Size, list[str]] = {}
    for name in names:
        found.setdefault(model.get_parameter(f"{name}.weight").shape, []).append(name)
    pieces = {shape: max(1, _AT_ONCE // shape.numel()) for shape in found}
    return [some[first : first + pieces[shape]] for shape, some in found.items() for first in range(0, len(some), pieces[shape])]


def _down(name: str) -> str:
    return f"{name}.lora_A.weight"


def _up(name: str) -> str:
    return f"{name}.lora_B.weight"


Trained = AllWeights | Adapters


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The names of all linear layers but the output head, as PEFT's `all-linear` means it."""
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head]


def _fresh(model: PreTrainedModel, names: list[str], rank: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(derive(seed, "adapters"))
    real = torch.float64 if model.dtype == torch.float64 else torch.float32
    found: dict[str, Tensor] = {}
    for name in names:
        out, into = model.get_parameter(f"{name}.weight").shape
        bound = 1 / math.sqrt(into)
        down = torch.empty(rank, into, dtype=real).uniform_(-bound, bound, generator=generator)
        for key, value in (("lora_A", down), ("lora_B", torch.zeros(out, rank, dtype=real))):
            found[f"{name}.{key}.weight"] = value.to(model.device)
    return found


def _base_weights(model: PreTrainedModel, names: list[str], start: Path | None) -> dict[str, Tensor]:
    """The weights without any adapter: the module's own, unless it was loaded with one."""
    if start is None:
        return {name: model.get_parameter(f"{name}.weight").detach().clone() for name in names}
    wanted, base = {f"{name}.weight": name for name in names}, base_of(start)
    found = {wanted[key]: value for path in sorted(base.glob("*.safetensors")) for key, value in load_file(path).items() if key in wanted}
    if set(found) != set(names):
        raise ValueError(f"{base} does not hold all weights that the adapters of {start} change")
    return found


def _merged(base: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    return base.to(down.dtype).addmm(up, down, alpha=scale)


def _add_gradient(master: Tensor, gradient: Tensor) -> None:
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


def _master(parameter: torch.nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().float())


# --- Folders of PEFT ---------------------------------------------------------------------------------------------------


def save_adapters(folder: Path, masters: Mapping[str, Tensor], *, rank: int, alpha: float, base: str) -> None:
    """Write A and B in bfloat16 with what PEFT needs to know; `base` is what `model.path` calls the model they belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({_PREFIX + name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in masters.items()}, folder / ADAPTER_WEIGHTS)
    targets = sorted({name.removesuffix(".weight").rpartition(".")[0].rpartition(".")[2] for name in masters})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    share(folder / ADAPTER_WEIGHTS, folder / ADAPTER_CONFIG)


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Add a folder's adapters to the weights of their base model."""
    config = _config(folder)
    names = linear_layers(model)
    masters = _read(folder, model, names, config["r"], config["lora_alpha"])
    for name in names:
        weight = model.get_parameter(f"{name}.weight")
        weight.copy_(_merged(weight, masters[f"{name}.lora_A.weight"], masters[f"{name}.lora_B.weight"], config["lora_alpha"] / config["r"]))


def _config(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / ADAPTER_CONFIG).read_text())
    if found.get("peft_type") != "LORA" or not found.get("r") or not found.get("lora_alpha") or found.get("use_rslora") or found.get("use_dora"):
        raise ValueError(f"{folder / ADAPTER_CONFIG} is not of plain LoRA adapters")
    return dict(found)


def _read(folder: Path, model: PreTrainedModel, names: list[str], rank: int, alpha: float) -> dict[str, Tensor]:
    """A folder's A and B as masters; one that does not fit is refused."""
    config = _config(folder)
    if (config["r"], config["lora_alpha"]) != (rank, alpha):
        found = f"learn.lora_rank = {config['r']} and learn.lora_alpha = {config['lora_alpha']}"
        raise ValueError(f"the adapters of {folder} need {found}, not {rank} and {alpha}")
    real = torch.float64 if model.dtype == torch.float64 else torch.float32
    stored = {key.removeprefix(_PREFIX): value for key, value in load_file(folder / ADAPTER_WEIGHTS).items()}
    expected = {f"{name}.{key}.weight": shape for name in names for key, shape in _shapes(model, name, rank).items()}
    if {key: tuple(value.shape) for key, value in stored.items()} != expected:
        raise ValueError(f"the adapters of {folder} are not of all linear layers of {config.get('base_model_name_or_path')}")
    return {key: stored[key].to(model.device, real) for key in expected}


def _shapes(model: PreTrainedModel, name: str, rank: int) -> dict[str, tuple[int, int]]:
    out, into = model.get_parameter(f"{name}.weight").shape
    return {"lora_A": (rank, into), "lora_B": (out, rank)}
