"""The keys of every pipeline: the run, lengths, checkpoints, tracking, staleness, devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from roll.core.configs.device_mapping import MAX_DEVICES
from roll.core.configs.fields import Bounds, option
from roll.core.configs.flow import FlowConfig
from roll.core.configs.replay import ReplayConfig
from roll.core.configs.staleness import GroupsOrder, StalenessPolicy
from roll.core.configs.watching import AlarmConfig, EarlyStoppingConfig, KeepBestConfig, OnEventConfig

TrackerName = Literal["tensorboard", "wandb", "swanlab", "mlflow", "none"]
WeightUpdateMode = Literal["interrupt", "in_flight", "drain"]
WeightTransport = Literal["auto", "object_store", "ipc", "collective", "nccl", "checkpoint_dir"]
TRANSPORTS_APART = ("auto", "object_store", "checkpoint_dir")
"""Transports between separate processes, an explorer and a trainer."""
Sharing = Literal["turns", "overlap", "auto"]
Mode = Literal["both", "explore", "train", "bench", "replay"]

COUNT = Bounds(ge=1)
DEVICES = Bounds(ge=1, le=MAX_DEVICES)
PRETRAIN = "pretrain"
"""The name of the `pretrain` model among the models of an evaluation."""
EVAL_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    # The run.
    exp_name: str = option(
        "rlvr", "Name of the run; its files go to <output_dir>/<exp_name>. The default of an agentic run is agentic."
    )
    output_dir: str = option("./output", "Folder of all runs.", path="file")
    seed: int = option(42, "Seed of data order, sampling and initialisation.", bounds=Bounds(ge=0, lt=2**32))
    max_steps: int = option(
        500, "Pipeline steps of the whole run; one step trains one rollout batch.", bounds=Bounds(ge=1, le=10**9)
    )
    pretrain: str | None = option(
        None,
        "The model that every role starts from: a Hugging Face folder, or the name of one on the hub, owner/model[@revision].",
        path="model",
    )
    deterministic: bool | Literal["training"] = option(
        False, "true: bitwise repeatable, slower; needs async_generation_ratio 0. training: the training side is (`roll replay`)."
    )
    rpc_timeout: float = option(3600.0, "Seconds after which a call to a worker is given up as hung.", bounds=Bounds(gt=0))
    worker_start_timeout: float = option(
        1800.0,
        "Seconds that the start of a worker may take: imports, model, engine, on a cold and busy machine.",
        bounds=Bounds(gt=0),
    )
    heartbeat_timeout: float = option(
        300.0,
        "Seconds of silence after which a worker of any role counts as dead and is killed; one that is only busy answers. "
        "0: never. Without effect with --local.",
        bounds=Bounds(ge=0),
    )

    stop_within_s: float = option(
        25.0,
        "Seconds within which SIGTERM ends a run, with a checkpoint if the step ends in time; 5 of them, at most a third, are "
        "for the end of the workers. Slurm and Kubernetes send SIGKILL after 30.",
        bounds=Bounds(gt=0),
    )

    # Explorers and a trainer as processes of their own.
    mode: Mode = option(
        "both",
        "What this process does.\n"
        "both: one driver explores and trains.\n"
        "train: it trains what explorers of the same run roll out; they find each other in <output_dir>/<exp_name>.\n"
        "explore: it is one of these explorers. replay: a run's recorded groups are trained again (roll replay).\n"
        "bench: nothing is trained; models are evaluated on the validation sets.",
    )
    bench_checkpoints: list[str] = option(
        [PRETRAIN],
        "mode bench: what is evaluated: pretrain, best (of this run), folders of runs (all their checkpoints) or of checkpoints.",
        path="checkpoint",
    )
    groups_database: str | None = option(
        None,
        "Where groups are kept: sqlite:///path for processes of one machine, postgresql+psycopg://user@host/name for many. "
        "null: in memory with mode both, else sqlite:///<output_dir>/<exp_name>/groups.db.",
        path="database",
    )
    replay: ReplayConfig = option(ReplayConfig(), "mode replay: what is trained again.")
    explorer_name: str = option("explorer", "mode explore: tells the explorers of a run apart; each has a name of its own.")
    member_timeout: float = option(
        60.0,
        "Groups in a database: seconds without a sign of life after which a process counts as dead. For an explorer, whose "
        "groups are rolled out again, an eighth of them (at least 5 s) where there are others; who was only silent explores on.",
        bounds=Bounds(gt=0),
    )
    peer_timeout: float = option(
        3600.0,
        "mode explore or train: seconds after which a process gives up that sees no living trainer, or no living explorer.",
        bounds=Bounds(gt=0),
    )

    # Batches and lengths, in tokens.
    rollout_batch_size: int = option(128, "RLVR: prompts per step. Agentic: episodes per step.", bounds=COUNT)
    val_batch_size: int | None = option(
        None,
        "RLVR: prompts of each validation set that are evaluated, null means all. Agentic: episodes of each validation set, null "
        "means one for each place in its env manager.",
        bounds=COUNT,
    )
    sequence_length: int | None = option(
        None,
        "RLVR: longest prompt and response together, null means prompt_length + response_length. Agentic: the context of an "
        "episode, all turns together; needed.",
        bounds=COUNT,
    )

    # Checkpoints, evaluation, tracking.
    save_steps: int = option(50, "Steps between checkpoints; 0: the last step alone leaves one.", bounds=Bounds(ge=0))
    max_ckpt_to_keep: int = option(0, "Newest checkpoints kept; 0 means all.", bounds=Bounds(ge=0))
    keep_best: KeepBestConfig | None = option(None, "Keeps the checkpoints with the best validations, too; {}: by accuracy.")
    early_stopping: EarlyStoppingConfig | None = option(None, "Ends a run that gets no better, e.g. {patience: 5}.")
    resume_from_checkpoint: bool | str = option(
        False,
        "false: start from the beginning; true: continue from the newest checkpoint; auto: continue if there is one; or a path.",
        path="checkpoint",
    )
    max_dropped_batches: int = option(
        20,
        "Batches of groups that filters or failures may drop, no step done between them, before the run ends with the commonest "
        "cause; 0 means any number.",
        bounds=Bounds(ge=0),
    )
    eval_steps: int | None = option(None, f"Steps between validations; null means {EVAL_STEPS}.", bounds=COUNT)
    logging_steps: int = option(1, "Steps between lines on the console; metrics.jsonl has every step.", bounds=COUNT)
    track_with: TrackerName | list[TrackerName] = option("tensorboard", "Trackers besides metrics.jsonl.")
    tracker_kwargs: dict[str, Any] = option({}, "Handed to the trackers, e.g. {wandb: {project: my-project}}.")
    alarms: list[AlarmConfig] = option(
        [],
        "Metrics that are watched while steps are trained, e.g. [{metric: actor/ess, below: 0.3, for_steps: 3, action: stop}]. "
        "With mode explore and train the trainer watches.",
    )
    metrics_address: str | None = option(
        None,
        "Where Prometheus fetches the figures of the run, :port of this machine alone, or host:port; port 0: any that is free, "
        "which is told. null: nowhere.",
    )
    otlp_endpoint: str | None = option(
        None,
        "Where spans of groups, steps and weight updates are sent by OpenTelemetry, e.g. http://127.0.0.1:4318. null: nowhere.",
    )
    on_event: OnEventConfig = option(OnEventConfig(), "Commands and webhooks, e.g. {failed: [mail, -s, failed, me@example.org]}.")
    rollout_log_per_step: int | Literal["all"] = option(
        8,
        "Rollouts written to samples.jsonl each step, rounded up to whole groups that are drawn by seed; as many of groups that "
        "were dropped, and of each validation set. all: every one, and batches.jsonl, of which `roll replay` trains again.",
        bounds=Bounds(ge=0),
    )
    rollout_log_limit_gb: float = option(
        10.0,
        "Gigabytes that all files of samples.jsonl, and those of batches.jsonl, may take; then the oldest goes. 0: any number.",
        bounds=Bounds(ge=0),
    )

    # Rollouts ahead of training.
    async_generation_ratio: float = option(
        0.0,
        "How many batches rollouts may run ahead: a token trained is at most ceil(ratio) versions old.",
        bounds=Bounds(ge=0, le=1000),
    )
    async_pipeline_depth: float | Literal["auto"] = option(
        "auto", "How many batches ahead rollouts are started; auto: as few as keep the trainer busy.", bounds=Bounds(ge=0)
    )
    staleness_policy: StalenessPolicy = option(
        "wait",
        "What happens to a group that would become too old.\nwait: the trainer waits for it.\ndrop: it is dropped and counted.",
    )
    max_reuse: int = option(
        1,
        "How many steps may train a group, each within the staleness bound. A step that lacks ready groups trains others again: "
        "those that were trained least often, of these the newest.",
        bounds=COUNT,
    )
    groups_order: GroupsOrder = option(
        "fifo",
        "Which ready groups a step takes.\n"
        "fifo: in the order of admission.\n"
        "newest: the newest first (staleness_policy drop); those left behind for too long are dropped and counted.",
    )
    train_on_arrival: bool = option(
        False,
        "true: a group is trained as soon as it is complete, and gradients add up to the step of the whole batch. Needs "
        "fsdp2_train, on devices that no other role uses, and nothing that looks at the whole batch first.",
    )
    weight_update_mode: WeightUpdateMode = option(
        "interrupt",
        "What happens to running requests at a weight update.\n"
        "interrupt: they are interrupted, and prefilled again.\n"
        "in_flight: they go on with their KV cache.\n"
        "drain: the update waits until they have ended, and none begins meanwhile.",
    )
    weight_update_rolling: bool = option(
        False, "true: engines take new weights one after another, so that generation never stops everywhere."
    )
    weight_push_interval: int = option(
        1, "Steps between two publications of the trained weights, at most async_generation_ratio + 1.", bounds=COUNT
    )
    weight_pull_interval: int = option(
        0,
        "An engine loads newer weights after this many groups that it had a part in, or sooner if rollouts would otherwise have "
        "to wait. 0: as soon as a version is published.",
        bounds=Bounds(ge=0),
    )
    model_update_transport: WeightTransport = option(
        "auto",
        "How weights travel.\n"
        "auto: ipc where all roles are on one machine, which no Ray cluster was joined for, else object_store.\n"
        "object_store: through Ray's store on the trainers' nodes, from which each engine fetches them; by reference with "
        "--local; with mode explore and train over TCP, from the trainer's process (weights_address).\n"
        "ipc: by handle, on one machine: the trainer's ranks write files in its memory, and engines map them.\n"
        "collective: each of the trainers' ranks broadcasts to an engine of each node, by gloo; by reference with --local.\n"
        "nccl: as collective, from device to device, for roles on devices of their own. Experimental: not run on a GPU.\n"
        "checkpoint_dir: safetensors in <output_dir>/<exp_name>/weights, which trainers and engines both have to see.\n"
        "With mode explore and train there are checkpoint_dir and object_store, which is auto's choice.",
    )
    weights_address: str | None = option(
        None,
        "mode train: the address of its machine at which explorers fetch weights, host or host:port, as firewalls need it. "
        "null: that of the interface by which the server of groups_database is reached; with SQLite 127.0.0.1, for explorers of "
        "the same machine.",
    )
    weight_anchor_interval: int = option(
        1,
        "mode train: every n-th published version is whole, and those between are what has changed since the one before, for "
        "explorers behind a slow link. While changes take more than half of the bytes, all versions but one in n are whole. "
        "1: all are whole.",
        bounds=COUNT,
    )
    model_update_buffer_size_mb: int = option(1024, "Size of a weight bucket in MiB.", bounds=COUNT)
    max_running_requests: int = option(128, "Requests that one engine runs together.", bounds=COUNT)
    max_engine_restarts: int = option(
        3,
        "How many times in a run a dead engine is started again. 0: the first death ends the run, as always with --local.",
        bounds=Bounds(ge=0),
    )
    engine_health_interval_s: float = option(10.0, "Time between health checks of an engine.", bounds=Bounds(gt=0))
    engine_health_timeout_s: float = option(
        120.0, "An engine that does not answer a health check in this time is killed and started again.", bounds=Bounds(gt=0)
    )
    max_trainer_restarts: int = option(
        3,
        "How many times in a run the trainer is started again when a rank of actor_train, actor_log_prob, critic, reference or a "
        "teacher dies: from the newest checkpoint (save_steps) or, while there is none, from the beginning. 0: the first death "
        "ends the run, as always with --local and mode train.",
        bounds=Bounds(ge=0),
    )
    synchronous_after_failures: int = option(
        0,
        "After so many engines, environment and reward workers had to be replaced the run goes on in the synchronous schedule, "
        "as with async_generation_ratio 0, until it is resumed. 0: never.",
        bounds=Bounds(ge=0),
    )
    redundant_groups: int = option(
        0, "Groups started beyond those that are needed, so that filtered ones are replaced sooner.", bounds=Bounds(ge=0)
    )

    # What a user adds.
    flow: FlowConfig = option(FlowConfig(), "Stages of your own between those of the run, and callbacks.")

    # Devices.
    num_nodes: int = option(1, "Machines.", bounds=DEVICES)
    num_gpus_per_node: int | None = option(
        None, "Devices per machine; null means the accelerators found, else the CPU cores (at least 2).", bounds=DEVICES
    )
    sharing: Sharing = option(
        "turns",
        "What the engines and other roles do on devices that are both of theirs.\n"
        "turns: one sleeps while the other works.\n"
        "overlap: both work at the same time; the engines get the memory that the other roles leave.\n"
        "auto: overlap if rollouts run ahead (async_generation_ratio) and the devices have memory for both, else turns.",
    )
    device_timeout: float | None = option(
        None,
        "In a Ray cluster that was joined (RAY_ADDRESS): seconds that a run waits for nodes to join, and for devices that others "
        "hold; then it is refused, and told who they are. null means 10, and 600 for one of several processes (mode explore or "
        "train), as a machine that is to join the cluster takes minutes.",
        bounds=Bounds(gt=0),
    )

    @property
    def waits_for_devices_s(self) -> float:
        return self.device_timeout or (600.0 if self.is_one_of_several else 10.0)

    @property
    def steps_between_validations(self) -> int:
        return EVAL_STEPS if self.eval_steps is None else self.eval_steps

    @property
    def trains(self) -> bool:
        """True if this process has the trainer half."""
        return self.mode in ("both", "train", "replay")

    @property
    def explores(self) -> bool:
        """True if this process has the explorer half."""
        return self.mode in ("both", "explore")

    @property
    def has_both_sides(self) -> bool:
        return self.trains and self.explores

    @property
    def is_one_of_several(self) -> bool:
        """True if the other side of the run is another process."""
        return self.mode in ("explore", "train")

    @property
    def only_explores(self) -> bool:
        """True if the trainer is another process."""
        return self.explores and not self.trains

    @property
    def only_evaluates(self) -> bool:
        """True if nothing is trained anywhere: the process evaluates models trained before."""
        return not (self.trains or self.explores)

    @property
    def has_engines(self) -> bool:
        return self.explores or self.only_evaluates

    @property
    def shared_dir(self) -> str:
        """The folder of the run, shared by all its processes."""
        return str(PurePath(self.output_dir) / self.exp_name)

    @property
    def run_dir(self) -> str:
        """The folder that this process writes to."""
        own = {"explore": ("explorers", self.explorer_name), "bench": ("bench",)}
        return str(PurePath(self.shared_dir, *own.get(self.mode, ())))

    @property
    def groups_address(self) -> str | None:
        """The database of groups; None: groups are in memory, or there are none."""
        if self.mode in ("bench", "replay"):
            return None
        if self.groups_database is None and self.mode != "both":
            return f"sqlite:///{PurePath(self.shared_dir, 'groups.db')}"
        return self.groups_database
