"""The inference engines: one row each. A new one is a folder in `strategies/infer/`, a row here, and a `StrategyName`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    strategy: str
    """Dotted path of its `InferStrategy`."""
    scorer: str = ""
    """Dotted path of its `Scorer`; empty: it serves no classifier."""
    teacher: str = ""
    """Dotted path of its `Teacher`; empty: it says no log-probs of texts that it is given."""
    teaches_at_1: bool = False
    """Log-probs of texts are those of temperature 1, whatever is asked."""
    package: str = ""
    """Dotted path of the module that knows its installation and its arguments (`EnginePackage`); empty: the engine is this
    project's own, and runs in its worker's process."""
    hosted: bool = False
    """Its worker can run it in another interpreter (`foreign`)."""
    computes_as_trainer: bool = False
    """Its log-probs equal the trainer's up to rounding."""
    repeatable: bool = False
    """It promises that a response is a function of weights, prompt and seed."""
    images: bool = False
    """It is shown images."""
    head_argument: tuple[str, object] = ("", None)
    """Its argument for `head_dtype: fp32`, as a dotted path, and the value."""
    routes_argument: str = ""
    """The argument that it needs to report the experts that computed a token."""
    adapters: Literal["none", "merged", "beside"] = "none"
    """Its way to serve LoRA adapters: merged into its base weights, or computed beside them."""
    largest_rank: int | None = None
    """The largest rank of an adapter that it serves."""
    ends_by_folder: bool = False
    """It also ends an answer at the end tokens of the model's folder, regardless of the request."""
    memory_share: float | None = None
    """The share of a device's memory that it takes by default."""
    share_argument: str = ""
    """Its argument for another share."""
    sleep_arguments: tuple[str, ...] = ()
    """Its arguments that let it release its memory, including weights, while it sleeps on an accelerator."""
    drops_weights: bool = False
    """While it sleeps on an accelerator, it keeps no copy of the weights in host memory."""
    worker_copies: bool = False
    """Its worker, not its own process, copies weights that are lent on its device."""
    in_flight_argument: tuple[str, str] | None = None
    """The argument that `weight_update_mode: in_flight` needs on an accelerator, and the reason."""
    cpu_cache_variable: str = ""
    """The environment variable with the size of its KV cache on a CPU, in GiB; it overrides the argument."""


CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE"
DRAFTS = "speculative_config"
"""vLLM's argument for tokens that are proposed, and verified several at a time."""
ENGINES: dict[str, EngineTraits] = {
    "hf_infer": EngineTraits(
        strategy="roll.strategies.infer.hf.strategy.HFInferStrategy",
        scorer="roll.strategies.infer.hf.scorer.HFScorer",
        computes_as_trainer=True,
        repeatable=True,
        images=True,
        adapters="merged",
    ),
    "vllm": EngineTraits(
        strategy="roll.strategies.infer.vllm.strategy.VLLMInferStrategy",
        scorer="roll.strategies.infer.vllm.scorer.VLLMScorer",
        teacher="roll.strategies.infer.vllm.teacher.VLLMTeacher",
        package="roll.strategies.infer.vllm.arguments",
        hosted=True,
        images=True,
        head_argument=("hf_overrides.head_dtype", "float32"),
        routes_argument="enable_return_routed_experts",
        adapters="beside",
        largest_rank=512,
        memory_share=0.92,
        share_argument="gpu_memory_utilization",
        sleep_arguments=("enable_sleep_mode",),
        drops_weights=True,
        cpu_cache_variable=CACHE_GIB,
    ),
    "sglang": EngineTraits(
        strategy="roll.strategies.infer.sglang.strategy.SGLangInferStrategy",
        teacher="roll.strategies.infer.sglang.teacher.SGLangTeacher",
        teaches_at_1=True,
        package="roll.strategies.infer.sglang.arguments",
        head_argument=("enable_fp32_lm_head", True),
        worker_copies=True,
        routes_argument="enable_return_routed_experts",
        ends_by_folder=True,
        memory_share=0.84,  # on a device of 80 GB, about, for it follows from the device
        share_argument="mem_fraction_static",
        sleep_arguments=("enable_memory_saver", "enable_weights_cpu_backup"),
        in_flight_argument=(
            "disable_overlap_schedule",
            "SGLang would load weights while a token step runs, and stamp its tokens with their version",
        ),
    ),
}

NO_ENGINE = EngineTraits(strategy="")
"""The traits of a training back end, which is no engine."""


def engine_of(strategy_name: str) -> EngineTraits:
    return ENGINES.get(strategy_name, NO_ENGINE)


def engines_that(trait: str) -> tuple[str, ...]:
    """Returns the names of the engines whose trait is neither False nor empty."""
    return tuple(name for name, engine in ENGINES.items() if getattr(engine, trait))
