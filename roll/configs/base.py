"""What every pipeline has: the run, lengths, checkpoints, tracking, rollouts ahead of training, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.fields import Bounds, option

TrackerName = Literal["tensorboard", "wandb", "swanlab", "mlflow", "none"]
StalenessPolicy = Literal["wait", "drop"]
WeightUpdateMode = Literal["interrupt", "in_flight"]

COUNT = Bounds(ge=1)


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    # The run.
    exp_name: str = option("rlvr", "Name of the run; its files go to <output_dir>/<exp_name>.")
    output_dir: str = option("./output", "Folder of all runs.")
    seed: int = option(42, "Seed of data order, sampling and initialisation.", bounds=Bounds(ge=0))
    max_steps: int = option(500, "Pipeline steps of the whole run; one step trains one rollout batch.", bounds=COUNT)
    pretrain: str | None = option(None, "Folder of the Hugging Face checkpoint every role starts from.")
    deterministic: bool = option(False, "Bitwise repeatable, slower; needs async_generation_ratio 0.")
    rpc_timeout: float = option(3600.0, "Seconds after which a call to a worker is given up as hung.", bounds=Bounds(gt=0))

    # Batches and lengths, in prompts and tokens.
    rollout_batch_size: int = option(128, "Prompts a step.", bounds=COUNT)
    num_return_sequences_in_group: int = option(8, "Responses per prompt: the group.", bounds=COUNT)
    val_batch_size: int | None = option(None, "Validation prompts evaluated each time; null means all.", bounds=COUNT)
    prompt_length: int = option(1024, "Longest prompt; longer ones are skipped and counted.", bounds=COUNT)
    response_length: int | None = option(None, "Longest response; null means sequence_length - prompt_length.", bounds=COUNT)
    sequence_length: int | None = option(
        None, "Longest prompt and response together; null means prompt_length + response_length.", bounds=COUNT
    )

    # Checkpoints, evaluation, tracking.
    save_steps: int = option(50, "Steps between checkpoints.", bounds=COUNT)
    max_ckpt_to_keep: int = option(0, "Newest checkpoints kept; 0 means all.", bounds=Bounds(ge=0))
    resume_from_checkpoint: bool | str = option(
        False, "false: start anew; true: continue from the newest checkpoint; auto: continue if there is one; or a path."
    )
    eval_steps: int = option(10, "Steps between validations.", bounds=COUNT)
    logging_steps: int = option(1, "Steps between lines on the console; metrics.jsonl has every step.", bounds=COUNT)
    track_with: TrackerName | list[TrackerName] = option("tensorboard", "Trackers besides metrics.jsonl.")
    tracker_kwargs: dict[str, Any] = option({}, "Handed to the trackers, e.g. {wandb: {project: my-project}}.")
    rollout_log_per_step: int = option(8, "Rollouts written to samples.jsonl each step.", bounds=Bounds(ge=0))

    # Rollouts ahead of training.
    async_generation_ratio: float = option(
        0.0, "How many batches rollouts may run ahead: a token trained is at most ceil(ratio) versions old.", bounds=Bounds(ge=0)
    )
    async_pipeline_depth: float | Literal["auto"] = option(
        "auto", "How many batches ahead rollouts are started; auto: as few as keep the trainer busy.", bounds=Bounds(ge=0)
    )
    staleness_policy: StalenessPolicy = option(
        "wait", "wait: the trainer waits for a group that would become too old; drop: the group is dropped and counted."
    )
    weight_update_mode: WeightUpdateMode = option(
        "interrupt", "Running requests at a weight update. interrupt: prefilled again; in_flight: keep their KV cache."
    )
    model_update_buffer_size_mb: int = option(1024, "Size of a weight bucket in MiB.", bounds=COUNT)
    max_running_requests: int = option(128, "Requests one engine runs at once.", bounds=COUNT)
    is_num_return_sequences_expand: bool = option(
        False, "true: route every response of a group on its own; false: a group stays on one engine and shares its prefill."
    )
    is_use_additional_prompts: bool = option(False, "Start more prompts than needed, to replace filtered groups sooner.")
    max_additional_running_prompts: int = option(16, "At most this many more.", bounds=Bounds(ge=0))

    # Devices.
    num_nodes: int = option(1, "Machines.", bounds=COUNT)
    num_gpus_per_node: int | None = option(
        None, "Devices per machine; null means the accelerators found, else the CPU cores (at least 2).", bounds=COUNT
    )
