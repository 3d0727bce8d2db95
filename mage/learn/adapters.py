"""Low-rank adapters (LoRA) as what the optimizer changes.

Adapters are not modules here. The weight of a layer is W = W0 + scale * B A. It is written into the
module after every change of A and B, so sampler and learner compute one plain model at full speed.
The compiled layers of the learner give A and B their gradient (`low_rank.py`). Other layouts and
architectures compute the gradient of W, which is then projected onto A and B. The adapter files
have the format of PEFT.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from mage.config.errors import UserError
from mage.config.sections import LearnOptions
from mage.learn.pack.graphs import LayerGraphs
from mage.learn.pack.low_rank import Factors
from mage.learn.trainable import AllWeights, Trainable
from mage.models.adapters import adapter_config, linear_layers, read_adapters, save_adapters
from mage.models.architecture import PreTrainedModel, is_plain
from mage.models.base import base_of
from mage.models.saving import save_model
from mage.seeds import derive

_STACKED_WEIGHTS = 2**25  # of layers that are updated together: 128 MB in float32


def make_trainable(
    model: PreTrainedModel, options: LearnOptions, *, seed: int = 0, start: Path | None = None
) -> Trainable:
    """All weights, or LoRA adapters if `lora_rank` is set."""
    if not options.lora_rank:
        return AllWeights(model, reference=options.kl > 0)
    adapters = Adapters(model, options.lora_rank, seed=seed, start=start)
    factors = adapters.factors
    if options.graphs and factors and model.device.type == "cuda":
        if not is_plain(model):
            raise UserError(
                "learn.graphs = true is for plain Llama, Qwen2 and Qwen3 models, and the layers of "
                f"this {type(model).__name__} are others: remove it"
            )
        adapters.graphs = LayerGraphs(model.get_decoder(), factors, options.tokens_at_once)
    return adapters


def save_trained(trainable: Trainable, source: Path, base: str, target: Path) -> None:
    """Write a whole model with the tokenizer of `source`, or the adapters alone.

    `base` is the `model.path` of their model.
    """
    if isinstance(trainable, Adapters):
        rank, alpha = trainable.rank, trainable.alpha
        save_adapters(target, trainable.masters, rank=rank, alpha=alpha, base=base)
    else:
        save_model(trainable.model, source, target)


class Adapters(Trainable):
    """A and B of every linear layer except the output head.

    They start with B = 0 (no change) and the scale 2, or with the values and the scale of a PEFT
    folder (`start`).
    """

    def __init__(
        self, model: PreTrainedModel, rank: int, *, seed: int = 0, start: Path | None = None
    ) -> None:
        super().__init__(model)
        config = adapter_config(start) if start else {"r": rank, "lora_alpha": 2.0 * rank}
        if config["r"] != rank:
            raise UserError(
                f"the adapters in {start} need learn.lora_rank = {config['r']}, not {rank}"
            )
        self.rank, self.alpha = rank, float(config["lora_alpha"])
        model.requires_grad_(False)
        names = linear_layers(model)
        values = read_adapters(start, model, names) if start else _fresh(model, names, rank, seed)
        base = _base_weights(model, names, start)
        scale = self.alpha / rank
        self._stacks = [_Stack(model, some, values, base, scale) for some in _alike(model, names)]
        self.masters = {
            name: value for stack in self._stacks for name, value in stack.masters.items()
        }
        self.factors = dict(pair for stack in self._stacks for pair in stack.factors())
        self.write_to_model()

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Project the gradient of a micro-batch onto A and B."""
        for stack in self._stacks:
            stack.add_gradient()

    def write_to_model(self) -> None:
        """Write W0 + scale * B A into the module."""
        for stack in self._stacks:
            stack.write(stack.down, stack.up)

    def after_step(self) -> None:
        if self.ownership is not None:
            self.ownership.broadcast(self.masters)
        self.write_to_model()

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The model as it was at the start. On exit the module holds the policy again."""
        for stack in self._stacks:
            stack.write(*stack.initial)
        try:
            yield self.model
        finally:
            self.write_to_model()


class _Stack:
    """Layers of one shape with their A and B stacked, so a step takes few kernels.

    The optimizer's parameters are views of the stacks, so layers keep their names.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        names: list[str],
        values: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        scale: float,
    ) -> None:
        self.scale = scale
        self.weights = [
            model.get_parameter(f"{name}.weight").requires_grad_(True) for name in names
        ]
        self.base = torch.stack([base[name].to(model.device, model.dtype) for name in names])
        self.down, self.up = (
            torch.stack([values[key(name)] for name in names]) for key in (_down, _up)
        )
        self.initial = self.down.clone(), self.up.clone()  # for the reference
        self.downs = [torch.nn.Parameter(part) for part in self.down]
        self.ups = [torch.nn.Parameter(part) for part in self.up]
        self.masters = dict(
            zip([*map(_down, names), *map(_up, names)], [*self.downs, *self.ups], strict=True)
        )

    def factors(self) -> Iterator[tuple[Tensor, Factors]]:
        for weight, down, up in zip(self.weights, self.downs, self.ups, strict=True):
            yield weight, Factors(down, up, self.scale)

    def add_gradient(self) -> None:
        """Add dA = scale B^T dW and dB = scale dW A^T, and drop dW."""
        given = [weight.grad for weight in self.weights]
        if not any(gradient is not None for gradient in given):
            return
        gradient = torch.stack(
            [
                torch.zeros_like(weight) if own is None else own
                for own, weight in zip(given, self.weights, strict=True)
            ]
        ).to(self.down.dtype)
        _add_gradients(self.downs, (self.up.mT @ gradient).mul_(self.scale))
        _add_gradients(self.ups, (gradient @ self.down.mT).mul_(self.scale))
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def write(self, down: Tensor, up: Tensor) -> None:
        if down.is_cuda and down.dtype == torch.float32:
            self._write_fused(down, up)
            return
        torch._foreach_copy_(
            self.weights, list(torch.baddbmm(self.base.to(down.dtype), up, down, alpha=self.scale))
        )

    def _write_fused(self, down: Tensor, up: Tensor) -> None:
        from mage.learn.merge_kernel import merge  # needs Triton, which a CPU does not have

        for weight, base, a, b in zip(self.weights, self.base, down, up, strict=True):
            merge(base, a, b, self.scale, weight)


def _add_gradients(parts: list[torch.nn.Parameter], stacked: Tensor) -> None:
    """Add the gradients of one stack to its parts."""
    if parts[0].grad is not None:
        torch._foreach_add_([part.grad for part in parts], list(stacked))
        return
    for part, gradient in zip(parts, stacked, strict=True):
        part.grad = gradient


def _alike(model: PreTrainedModel, names: list[str]) -> list[list[str]]:
    """Names of layers of equal shape, in pieces whose float32 copy takes little memory."""
    found: dict[torch.Size, list[str]] = {}
    for name in names:
        found.setdefault(model.get_parameter(f"{name}.weight").shape, []).append(name)
    pieces = {shape: max(1, _STACKED_WEIGHTS // shape.numel()) for shape in found}
    return [
        some[first : first + pieces[shape]]
        for shape, some in found.items()
        for first in range(0, len(some), pieces[shape])
    ]


def _down(name: str) -> str:
    return f"{name}.lora_A.weight"


def _up(name: str) -> str:
    return f"{name}.lora_B.weight"


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


def _base_weights(
    model: PreTrainedModel, names: list[str], start: Path | None
) -> dict[str, Tensor]:
    """The weights without adapters: the module's own, unless it was loaded with adapters.

    They are not copied here; `_Stack` copies them, layer by layer.
    """
    if start is None:
        return {name: model.get_parameter(f"{name}.weight").detach() for name in names}
    wanted, base = {f"{name}.weight": name for name in names}, base_of(start)
    found = {
        wanted[key]: value
        for path in sorted(base.glob("*.safetensors"))
        for key, value in load_file(path).items()
        if key in wanted
    }
    if set(found) != set(names):
        raise UserError(f"{base} does not hold all weights that the adapters of {start} change")
    return found
