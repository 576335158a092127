"""The inference engines: one row says what each can do, and by which name its code is loaded. A new engine is a folder in
`strategies/infer/`, a row here, and a `StrategyName`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    strategy: str
    """Its `InferStrategy`, by dotted path."""
    scorer: str = ""
    """Its `Scorer`, by dotted path; empty: it serves no classifier."""
    package: str = ""
    """The module that knows how it is installed and which arguments it takes (`EnginePackage`), by dotted path; empty: the engine
    is this project's own, and runs in its worker's process."""
    hosted: bool = False
    """Its worker can run it in another interpreter (`foreign`)."""
    computes_as_trainer: bool = False
    """Its log-probs are the trainer's, but for rounding."""
    sampling_mask: bool = False
    """It says which tokens top_p and top_k kept."""
    routes: bool = False
    """It says which experts computed a token."""
    adapters: Literal["none", "merged", "beside"] = "none"
    """How it serves LoRA adapters: merged with the base that it has, or computed beside it."""
    largest_rank: int | None = None
    """The largest rank of an adapter that it serves."""
    ends_by_folder: bool = False
    """It ends an answer at the model folder's end tokens, too, whatever a request says."""
    memory_share: float | None = None
    """The share of a device's memory that it takes unless it is configured."""
    sleep_arguments: tuple[str, ...] = ()
    """Its arguments that let it give its memory back, weights too, while it sleeps on an accelerator."""
    drops_weights: bool = False
    """Asleep on an accelerator it keeps no copy of the weights in host memory."""
    in_flight_argument: tuple[str, str] | None = None
    """The argument that `weight_update_mode: in_flight` needs on an accelerator, and why."""
    cpu_cache_variable: str = ""
    """The environment variable that says, in GiB, how large its KV cache is on a CPU; it counts more than the argument."""


CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE"
ENGINES: dict[str, EngineTraits] = {
    "hf_infer": EngineTraits(
        strategy="roll.strategies.infer.hf.strategy.HFInferStrategy",
        scorer="roll.strategies.infer.hf.scorer.HFScorer",
        computes_as_trainer=True,
        sampling_mask=True,
        routes=True,
        adapters="merged",
    ),
    "vllm": EngineTraits(
        strategy="roll.strategies.infer.vllm.strategy.VLLMInferStrategy",
        scorer="roll.strategies.infer.vllm.scorer.VLLMScorer",
        package="roll.strategies.infer.vllm.arguments",
        hosted=True,
        adapters="beside",
        largest_rank=512,
        memory_share=0.92,
        sleep_arguments=("enable_sleep_mode",),
        drops_weights=True,
        cpu_cache_variable=CACHE_GIB,
    ),
    "sglang": EngineTraits(
        strategy="roll.strategies.infer.sglang.strategy.SGLangInferStrategy",
        package="roll.strategies.infer.sglang.arguments",
        ends_by_folder=True,
        memory_share=0.84,  # on a device of 80 GB, about, for it follows from the device
        sleep_arguments=("enable_memory_saver", "enable_weights_cpu_backup"),
        in_flight_argument=(
            "disable_overlap_schedule",
            "SGLang would load weights while a token step runs, and stamp its tokens with their version",
        ),
    ),
}

NO_ENGINE = EngineTraits(strategy="")
"""Those of a training back end."""


def engine_of(strategy_name: str) -> EngineTraits:
    return ENGINES.get(strategy_name, NO_ENGINE)


def engines_that(trait: str) -> tuple[str, ...]:
    """Names of the engines of which the trait is neither False nor empty."""
    return tuple(name for name, engine in ENGINES.items() if getattr(engine, trait))
