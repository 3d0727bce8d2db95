"""A small stand-in for the package vllm: the calls that `mage.engines.vllm` makes, with one model.

It builds the model from config.json, as vLLM does with dummy weights, and computes every reply with
plain transformers. Tests use it where vLLM is not installed.
"""

import enum
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mage.engines.sampling import truncate


class RequestOutputKind(enum.Enum):
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    logprobs: int
    stop_token_ids: list[int]
    ignore_eos: bool
    detokenize: bool
    output_kind: RequestOutputKind


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    model: str
    skip_tokenizer_init: bool
    load_format: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool
    kv_cache_dtype: str
    enforce_eager: bool
    logprobs_mode: str
    generation_config: str
    distributed_executor_backend: str
    disable_log_stats: bool


@dataclass
class Sequence:
    """An open request."""

    prompt: list[int]
    params: SamplingParams
    generator: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)


class LLMEngine:
    """One token for each of the oldest `max_num_seqs` requests in a step."""

    def __init__(self, args: EngineArgs) -> None:
        assert args.logprobs_mode == "processed_logprobs"
        self.limit, self.most = args.max_model_len, args.max_num_seqs
        self.cache = args.kv_cache_dtype
        config = AutoConfig.from_pretrained(args.model)
        dtype = getattr(torch, args.dtype)
        self.model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        self.open: dict[str, Sequence] = {}

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> "LLMEngine":
        return cls(args)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert (method, list(kwargs)) == ("reload_weights", ["weights_iterator"])
        given = dict(kwargs["weights_iterator"])
        missing, unknown = self.model.load_state_dict(given, strict=False)
        assert not unknown
        assert set(missing) <= {"lm_head.weight"}  # tied to the embedding

    def reset_prefix_cache(self) -> bool:
        return True

    def add_request(self, name: str, prompt: dict[str, list[int]], params: SamplingParams) -> None:
        ids = prompt["prompt_token_ids"]
        assert len(ids) + params.max_tokens <= self.limit
        generator = torch.Generator().manual_seed(params.seed)
        self.open[name] = Sequence(ids, params, generator)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.open[name]

    def step(self) -> list[Any]:
        outputs = [self._advance(name, self.open[name]) for name in list(self.open)[: self.most]]
        return [output for output in outputs if output is not None]

    @torch.inference_mode()
    def _advance(self, name: str, one: Sequence) -> Any:
        params = one.params
        logits = self.model(torch.tensor([one.prompt + one.ids])).logits[0, -1:].float()
        logits = truncate(
            logits / (params.temperature or 1.0),
            torch.ones(1, 1),
            torch.tensor([[params.top_k]]),
            torch.tensor([[params.top_p]]),
        )[0]
        shares = logits.softmax(-1)
        drawn = torch.multinomial(shares, 1, generator=one.generator)
        token = int(drawn if params.temperature else logits.argmax())
        one.ids.append(token)
        one.logprobs.append({token: SimpleNamespace(logprob=float(shares[token].log()))})
        finished = token in params.stop_token_ids or len(one.ids) == params.max_tokens
        if finished:
            del self.open[name]
        first = -1 if params.output_kind is RequestOutputKind.DELTA else 0
        if not finished and first == 0:
            return None
        new = SimpleNamespace(token_ids=one.ids[first:], logprobs=one.logprobs[first:])
        return SimpleNamespace(request_id=name, outputs=[new], finished=finished)


def install(patch: pytest.MonkeyPatch) -> None:
    """Let `import vllm` find the stand-in."""
    package, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    for item in (LLMEngine, EngineArgs, SamplingParams):
        setattr(package, item.__name__, item)
    params.RequestOutputKind = RequestOutputKind  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "vllm", package)
    patch.setitem(sys.modules, "vllm.sampling_params", params)
