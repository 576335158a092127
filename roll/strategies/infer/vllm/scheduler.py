"""vLLM's scheduler, told to pass on what our worker records: kept sets, and the experts of a mixture.

Its configuration has switches for both, and refuses them for every model runner but one, which needs Triton and reports other
log-probs.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from roll.strategies.infer.vllm.arguments import ROUTES


def passing_on(*, vllm_config: Any, **given: Any) -> Any:
    """Makes the scheduler, in the place of its class (`scheduler_cls`)."""
    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    scheduler = kind(vllm_config=vllm_config, **given)
    scheduler.return_sampling_mask = True
    if vllm_config.additional_config.get(ROUTES):
        scheduler.aux_output_connector = AuxOutputSchedulerConnector()
    return scheduler
