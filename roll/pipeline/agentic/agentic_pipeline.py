"""The agentic run: a group is a number of episodes in equal environments, played by coordinators that ask the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from roll.configs.agentic import AgenticConfig
from roll.data.sample import Sample
from roll.distributed.backend import Backend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory, place_on_cpus
from roll.pipeline.agentic.advantages import AgenticAdvantages
from roll.pipeline.agentic.coordinators import Coordinators
from roll.pipeline.agentic.episode_stage import EpisodeStage
from roll.pipeline.agentic.evaluation import EpisodeEvaluation
from roll.pipeline.agentic.metrics import episode_metrics
from roll.pipeline.agentic.preparation import AgenticPrepared, environment_workers
from roll.pipeline.explorer_stages import DataloaderStage, ExplorerHalf
from roll.pipeline.preparation import sampling_params
from roll.pipeline.training_pipeline import TrainingPipeline

ROLE = "environments"
WORKER = "roll.pipeline.agentic.environment_worker.EnvironmentWorker"


class AgenticPipeline(TrainingPipeline):
    def __init__(
        self,
        config: AgenticConfig,
        prepared: AgenticPrepared,
        inventory: Inventory,
        backend: Backend,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, prepared, AgenticAdvantages(config), inventory, backend, clock)
        self.config = config
        self.prepared = prepared
        self.has_validation = bool(prepared.validation)
        self._coordinators: Coordinators | None = None

    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        prepared = self.prepared
        kwargs = {
            "config": self.config,
            "tokenizer_folder": prepared.tokenizer_folder,
            "instructions": prepared.instructions,
            "context": prepared.derived.sequence_length,
            "requests_per_engine": prepared.derived.requests_per_engine,
        }
        placements = place_on_cpus(environment_workers(self.config, self.inventory), self.inventory)
        return {ROLE: [WorkerSpec(f"{ROLE}-{placement.rank}", WORKER, placement, kwargs) for placement in placements]}

    async def explorer_half(self, clusters: Mapping[str, Cluster]) -> ExplorerHalf:
        config, prepared, state = self.config, self.prepared, self.state
        derived, tokenizer = prepared.derived, prepared.tokenizer
        coordinators = self._coordinators = Coordinators(clusters[ROLE], clusters["actor_infer"], self.fleet.restartable)
        await coordinators.connect()
        generating = config.actor_infer.generating_args
        retried = frozenset(tag for tag, env in config.custom_envs.items() if env.on_env_failure == "retry")
        sampling = sampling_params(generating, derived.max_new_tokens, tokenizer)
        episodes = EpisodeStage(coordinators, config.train_env_manager, sampling, retried, state.fates)
        evaluation = EpisodeEvaluation(
            coordinators,
            config.val_env_manager or config.train_env_manager,
            prepared.validation,
            sampling_params(config.val_generating_args or generating, derived.val_max_new_tokens, tokenizer),
        )
        return ExplorerHalf(
            DataloaderStage(prepared.source, state.fates, state.depth),
            (episodes,),
            episodes.cancel,
            evaluation,
            coordinators.engine_down,
            coordinators.engine_up,
            lambda: {
                "environment_failures": dict(coordinators.failures),
                "environment_worker_deaths": coordinators.deaths,
                "redundant_episodes_aborted": coordinators.aborted,
            },
        )

    def rollout_metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        assert self._coordinators is not None
        told = self._coordinators
        counts = {f"env/failures/{kind}": float(count) for kind, count in told.failures.items()}
        counts |= {"env/worker_deaths": float(told.deaths), "env/redundant_aborted": float(told.aborted)}
        return episode_metrics(samples) | counts

    def watched(self, clusters: Mapping[str, Cluster]) -> list[Coroutine[Any, Any, None]]:
        """Coordinators are replaced by whoever finds one dead."""
        others = [cluster.watch() for role, cluster in clusters.items() if role not in (ROLE, "actor_infer")]
        return [*others, clusters[ROLE].kill_silent()]
