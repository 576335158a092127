"""Rules for verl's rollout, rewards, and what has nothing to do with either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.framework import File, at, is_count, is_one_of, is_text
from roll.compat.roll.rule import ENVIRONMENT, MEMORY, SPEED, KeyRule, ignored, lacking, off_or_lacking, renamed
from roll.compat.verl.facts import DOMAIN, ROLLOUT, count, data_blocks, engine, longest, validates
from roll.compat.verl.keys_training import SCORING, switched
from roll.compat.verl.sources import SOURCES

_ENGINE = "actor_infer.strategy_args.strategy_config"
_SAMPLING, _VALIDATION = "actor_infer.generating_args", "validation.generating_args"
SERVED = ("vllm", "sglang")
_NO_COLUMN = "(no column)"
"""With a function of the user's own rows are all of one domain, whatever a column `tag` of theirs says."""
_SWITCHES_OFF = "an episode of several turns is an agentic run: write custom_envs, or a program"


def _of(*engines: str) -> Any:
    return lambda value, file: engine(file) in engines


def _argument(name: str, theirs: Mapping[str, str] | None = None) -> tuple[KeyRule, KeyRule]:
    """Rules of an engine's argument. `theirs`: its name by engine, where it has another."""
    names = theirs or dict.fromkeys(SERVED, name)
    read = KeyRule(f"{ROLLOUT}.{name}", "alias", f"read as {_ENGINE}.{name}, an engine's own argument", lambda v, f: {
        f"{_ENGINE}.{names[engine(f)]}": v}, _of(*names), ", ".join(names))  # fmt: skip
    return read, ignored(f"{ROLLOUT}.{name}", "the engine has no such argument")


def _top_k(target: str) -> Any:
    return lambda value, file: {f"{target}.top_k": max(value, 0)}


def _is_integer(value: object, file: File) -> bool:
    return type(value) is int


def _own_arguments(value: Any, file: File) -> Mapping[str, Any]:
    return {f"{_ENGINE}.{name}": each for name, each in (value or {}).items()}


GENERATION = (
    KeyRule(f"{ROLLOUT}.name", "alias", "read as actor_infer.strategy_args.strategy_name; hf is hf_infer", lambda v, f: {
        "actor_infer.strategy_args.strategy_name": engine(f)}, is_one_of("vllm", "sglang", "hf"), "vllm, sglang, hf"),
    lacking(f"{ROLLOUT}.name", "vllm, sglang, or hf, this project's own engine"),
    renamed(f"{ROLLOUT}.n", "num_return_sequences_in_group"),
    renamed(f"{ROLLOUT}.temperature", f"{_SAMPLING}.temperature"),
    renamed(f"{ROLLOUT}.top_p", f"{_SAMPLING}.top_p", "log-probs are those of the distribution that is cut, which is sampled"),
    KeyRule(f"{ROLLOUT}.top_k", "alias", f"read as {_SAMPLING}.top_k; -1 is 0, no limit", _top_k(_SAMPLING), _is_integer,
        "integers"),
    *off_or_lacking(f"{ROLLOUT}.do_sample", (True,), "rollouts are sampled: write true"),
    KeyRule(f"{ROLLOUT}.prompt_length", "without effect", "data.max_prompt_length counts", when=lambda v, f: v == at(
        f, "data.max_prompt_length"), values="data.max_prompt_length"),
    KeyRule(f"{ROLLOUT}.response_length", "without effect", "data.max_response_length counts", when=lambda v, f: v == at(
        f, "data.max_response_length"), values="data.max_response_length"),
    *(lacking(f"{ROLLOUT}.{each}_length", f"data.max_{each}_length is both: write the same") for each in ("prompt", "response")),
    *(rule for name in ("tensor_model_parallel_size",) for rule in _argument(name, dict.fromkeys(SERVED,
        "tensor_parallel_size"))),
    *_argument("gpu_memory_utilization", {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}),
    *(rule for name in ("enforce_eager", "enable_chunked_prefill", "enable_prefix_caching", "max_num_batched_tokens")
      for rule in _argument(name, {"vllm": name})),
    KeyRule(f"{ROLLOUT}.max_model_len", "without effect", "the longest prompt and response bound the context", when=lambda v,
        f: is_count(
        v) and v >= longest(f), values="as long or longer"),
    lacking(f"{ROLLOUT}.max_model_len", "is shorter than data.max_prompt_length + data.max_response_length: write it as long"),
    KeyRule(f"{ROLLOUT}.max_num_seqs", "alias", "read as max_running_requests", lambda v, f: {"max_running_requests": v},
            lambda v, f: is_count(v), "1 or more"),
    *(rule for name in ("data_parallel_size", "pipeline_model_parallel_size") for rule in off_or_lacking(
        f"{ROLLOUT}.{name}", (1,), "an engine has tensor_model_parallel_size devices, and there are as many engines as fit: "
        "write 1")),
    KeyRule(f"{ROLLOUT}.expert_parallel_size", "without effect", "experts are not divided", when=is_one_of(1), values="1"),
    KeyRule(f"{ROLLOUT}.expert_parallel_size", "alias", f"read as {_ENGINE}.enable_expert_parallel", lambda v, f: {
        f"{_ENGINE}.enable_expert_parallel": True}, lambda v, f: engine(f) == "vllm" and v == at(
            f, f"{ROLLOUT}.tensor_model_parallel_size"), "tensor_model_parallel_size; vllm"),
    lacking(f"{ROLLOUT}.expert_parallel_size", "write 1, or tensor_model_parallel_size, with vllm"),
    *off_or_lacking(f"{ROLLOUT}.ignore_eos", (False,), "a response ends at the end of text: write false"),
    KeyRule(f"{ROLLOUT}.dtype", "alias", "read as actor_infer.model_args.dtype", lambda v, f: {"actor_infer.model_args.dtype": {
        "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[v]}, is_one_of("bfloat16", "float16", "float32"),
        "bfloat16, float16, float32"),
    lacking(f"{ROLLOUT}.dtype", "bfloat16, float16 or float32"),
    *off_or_lacking(f"{ROLLOUT}.over_sample_rate", (0, 0.0), "write redundant_groups, groups started beyond those that are "
            "needed"),
    *off_or_lacking(f"{ROLLOUT}.logprobs_mode", ("processed_logprobs",), "log-probs are those of the distribution that is "
            "sampled"),
    *off_or_lacking(f"{ROLLOUT}.skip_rollout", (False,), "roll replay trains recorded groups again"),
    *off_or_lacking(f"{ROLLOUT}.enable_rollout_routing_replay", (False,), "write actor_train.router_replay.mode: R3, with "
            "hf_infer"),
    *(lacking(f"{ROLLOUT}.{name}", f"write {_ENGINE}.{ours}") for name, ours in (
        ("quantization", "quantization"), ("quantization_config_file", "quantization"), ("limit_images", "limit_mm_per_prompt"))),
    *switched(f"{ROLLOUT}.disaggregation", "an engine prefills and decodes: remove it", "enabled"),
    *switched(f"{ROLLOUT}.mtp", "layers that predict further tokens are not used: remove it"),
    *switched(f"{ROLLOUT}.qat", "weights are sampled as they are: remove it"),
    *switched(f"{ROLLOUT}.multi_turn", _SWITCHES_OFF),
    *switched(f"{ROLLOUT}.prometheus", "write metrics_address"),
    *off_or_lacking(f"{ROLLOUT}.agent.default_agent_loop", ("single_turn_agent",), _SWITCHES_OFF),
    lacking(f"{ROLLOUT}.agent.agent_loop_config_path", _SWITCHES_OFF),
    KeyRule(f"{ROLLOUT}.agent.custom_async_server", "without effect", "there is none", when=lambda v, f: not (
        isinstance(v, Mapping) and any(v.values())), values="null"),
    lacking(f"{ROLLOUT}.agent.custom_async_server", "the engines are vllm, sglang and hf_infer"),
    ignored(f"{ROLLOUT}.agent.num_workers", "the driver drives all rollouts"),
    KeyRule(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", "alias", "read as model_update_buffer_size_mb",
            lambda v, f: {"model_update_buffer_size_mb": v}, lambda v, f: is_count(v), "1 or more"),
    *(ignored(f"{ROLLOUT}.checkpoint_engine.{name}", "model_update_transport says how weights travel") for name in (
        "backend", "engine_kwargs", "custom_backend_module")),
    *(KeyRule(f"{ROLLOUT}.engine_kwargs.{name}", "alias", f"read as {_ENGINE}: the engine's own arguments", _own_arguments,
              _of(name), name) for name in SERVED),
    *(ignored(f"{ROLLOUT}.engine_kwargs.{name}", "another engine is chosen") for name in (*SERVED, "trtllm")),
    *(ignored(f"{ROLLOUT}.{name}", why) for name, why in (
        ("mode", "every engine is asynchronous"), ("calculate_log_probs", "the sampler's log-probs are always kept"),
        ("free_cache_engine", "an engine that shares its devices sleeps while others work"), ("load_format", "an engine gets "
                "the trainer's weights"), ("enable_sleep_mode", "an engine that shares its devices sleeps while others work"),
        ("skip_tokenizer_init", "an engine gets and gives tokens"), ("layered_summon", MEMORY), ("multi_stage_wake_up", MEMORY),
        ("cudagraph_capture_sizes", SPEED), ("scheduling_policy", SPEED), ("disable_log_stats",
            "metrics.jsonl has the engines' state"),
        ("trace", "trace.json has every rollout"), ("profiler", "roll ui and trace.json show time"), ("skip_dump_dir",
            "part of skip_rollout"),
        ("seed", "seed counts"), ("full_determinism", "deterministic counts"), ("layer_name_map",
            "weights have the names of the hub"),
        ("nnodes", "trainer.nnodes, or rollout.nnodes, counts"), ("n_gpus_per_node", "trainer's, or rollout's, counts"),
        ("standalone_gpu_memory_utilization", "gpu_memory_utilization counts"), ("moe_load_balance_metrics_interval",
            "it is a metric"))),
    *SCORING,
)  # fmt: skip


def _validated(name: str, target: str, *rules: KeyRule) -> tuple[KeyRule, ...]:
    path = f"{ROLLOUT}.val_kwargs.{name}"
    off = KeyRule(path, "without effect", "nothing is evaluated", when=lambda v, f: not validates(f), values="without validation")
    return off, *(rules or (renamed(path, f"{_VALIDATION}.{target}"),))


VALIDATION = (
    *_validated("temperature", "temperature"), *_validated("top_p", "top_p"), *_validated("n", "num_return_sequences"),
    *_validated("top_k", "top_k", KeyRule(f"{ROLLOUT}.val_kwargs.top_k", "alias", f"read as {_VALIDATION}.top_k; -1 is 0, no "
            "limit",
                                          _top_k(_VALIDATION), _is_integer, "integers")),
    ignored(f"{ROLLOUT}.val_kwargs.do_sample", "temperature decides, as in verl: 0 is greedy"),
)  # fmt: skip


def _function(file: File) -> tuple[str, str] | None:
    """Returns file and name of the user's own function."""
    for block in ("custom_reward_function", "reward.custom_reward_function"):
        if path := at(file, f"{block}.path"):
            return str(path), str(at(file, f"{block}.name", "compute_score"))
    return None


def _own(value: object, file: File) -> Mapping[str, Any]:
    found = _function(file)
    assert found is not None
    block = f"rewards.{DOMAIN}"
    kwargs = at(file, "custom_reward_function.reward_kwargs") or at(file, "reward.custom_reward_function.reward_kwargs") or {}
    given = {"path": found[0], "name": found[1], "source": at(file, "data.reward_fn_key", "data_source")}
    written: dict[str, Any] = {f"{block}.worker_cls": "roll.compat.code.score_worker.ScoreRewardWorker"}
    written |= {f"{block}.reward_args.{name}": each for name, each in given.items()} | {f"{block}.timeout_s": 60.0}
    written |= {f"{block}.reward_args.reward_kwargs": kwargs} if kwargs else {}
    for data in data_blocks(file):
        written |= {f"{data}.tag": _NO_COLUMN, f"{data}.default_tag": DOMAIN}
    return written


def _built_in(value: Any, file: File) -> Mapping[str, Any]:
    block = f"rewards.{DOMAIN}"
    tags = {f"{data}.tag": value for data in data_blocks(file)}
    return {f"{block}.worker_cls": "roll.compat.verl.scorers.SourceRewardWorker", f"{block}.tag_included": [*SOURCES]} | tags


def _overlong(blocks: tuple[str, ...], file: File) -> Mapping[str, Any]:
    block = next((each for each in blocks if at(file, each)), blocks[0])
    shaping = f"rewards.{DOMAIN}.shaping"
    return {f"{shaping}.overlong_buffer": count(file, f"{block}.len", 0) or 0, f"{shaping}.overlong_penalty": at(
        file, f"{block}.penalty_factor", 1.0)}  # fmt: skip


_BUFFERS = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
)
_MANAGERS = ("naive", "dapo")
_NO_MANAGER = f"a reward is one of a function: {', '.join(_MANAGERS)} are; write custom_reward_function"
_BY_MODEL = ("model", "model_path", "rollout", "profiler", "enable_resource_pool", "n_gpus_per_node", "nnodes", "strategy",
    "max_length",
             "micro_batch_size", "micro_batch_size_per_gpu", "use_dynamic_bsz", "forward_max_token_len_per_gpu", "megatron",
             "load_weight",
             "ulysses_sequence_parallel_size", "use_reward_loop", "reward_loop_source", "reward_loop_module_path", "nccl_timeout",
             "reward_loop_class_name", "launch_reward_fn_async", "num_workers")  # fmt: skip
_WRITE_MODEL = "write rewards.<domain>.worker_cls: a RewardModelWorker, with reward_model: {model_name_or_path, device_mapping}"

REWARDS = (
    KeyRule("data.reward_fn_key", "without effect", "part of custom_reward_function", when=lambda v, f: _function(f) is not None,
            values="with a function of your own"),
    KeyRule("data.reward_fn_key", "alias", "read as data_args.tag: verl's scorer of that data_source has its like here, "
            "GSM8K's, and for MATH and its kin MathRuleRewardWorker's 1 for a right result, boxed or not, else 0; rows of "
            "others are refused: write custom_reward_function.path and name", _built_in, is_text, "text"),
    *(rule for block in ("custom_reward_function", "reward.custom_reward_function") for rule in (
        KeyRule(f"{block}.path", "alias", f"read as rewards.{DOMAIN}: the function in that file is called as it stands, in a "
                "process of its own, with data_source, solution_str, ground_truth and extra_info", _own, is_text, "text"),
        ignored(f"{block}.name", "part of path"), ignored(f"{block}.reward_kwargs", "part of path"))),
    *(rule for path in ("reward_model.reward_manager", "reward.reward_manager.name",
        "reward_manager.name") for rule in off_or_lacking(
        path, _MANAGERS, _NO_MANAGER)),
    *(rule for block in ("reward_manager", "reward.reward_manager") for rule in (
        *off_or_lacking(f"{block}.source", ("register",), _NO_MANAGER), ignored(f"{block}.module", "part of source"))),
    *(KeyRule(f"{block}.enable", "alias", f"read as rewards.{DOMAIN}.shaping: overlong_buffer and overlong_penalty", lambda v,
        f: _overlong(
        _BUFFERS, f), is_one_of(True), "true") for block in _BUFFERS),
    *(ignored(f"{block}.enable", "responses are not charged for their length") for block in _BUFFERS),
    *(ignored(f"{block}.{name}", "part of enable") for block in _BUFFERS for name in ("len", "penalty_factor", "log")),
    *(rule for block in ("reward", "reward_model") for rule in (
        KeyRule(f"{block}.reward_kwargs.max_resp_len", "without effect", "data.max_response_length counts", when=lambda v,
            f: v == at(
            f, "data.max_response_length"), values="data.max_response_length"),
        lacking(f"{block}.reward_kwargs.max_resp_len", "data.max_response_length is both: write the same"))),
    *off_or_lacking("reward_model.enable", (False,), _WRITE_MODEL),
    *switched("reward.reward_model", _WRITE_MODEL),
    ignored("reward.num_workers", f"rewards.{DOMAIN}.world_size says how many there are"),
    *(ignored(f"reward_model.{name}", "part of enable, or of verl's own implementation") for name in _BY_MODEL),
    *(rule for path in ("sandbox_fusion", "reward.sandbox_fusion", "reward_model.sandbox_fusion") for rule in (
        KeyRule(path, "without effect", "it is off", when=lambda v, f: not (isinstance(v, Mapping) and v.get("url")),
            values="url: null"),
        lacking(path, "write rewards.<domain>.worker_cls: a CodeSandboxRewardWorker, which has a sandbox of its own"))),
)  # fmt: skip

OTHERS = (
    *switched("distillation", "write teachers and distillation", "enabled"),
    *switched("transfer_queue", "groups_database keeps groups: remove it"),
    *(rule for name in ("rollout", "rollout_tq", "async_rollout") for rule in switched(f"skip.{name}",
        "roll replay trains recorded groups again")),
    ignored("global_profiler", "roll ui and trace.json show time"),
    *(ignored(f"ray_kwargs.{name}", ENVIRONMENT) for name in ("ray_init", "timeline_json_file")),
)  # fmt: skip

RULES = (*GENERATION, *VALIDATION, *REWARDS, *OTHERS)
