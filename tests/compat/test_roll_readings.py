"""What a file of ROLL is read as, so that it keeps ROLL's meaning: each against a number of ROLL's formula.

A formula is stated with its place in ROLL (commit 8eb27cc2), and computed here from that statement."""

import copy
import math
import statistics

import pytest
import torch
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_surface import keys

from roll.compat.roll import keys_distillation
from roll.compat.roll.readings import MATH
from roll.compat.roll.readings_agentic import only_group
from roll.compat.roll.report import DIFFERENCES, differences_of
from roll.compat.roll.rule import DROP
from roll.compat.roll.translation import READINGS, read_as_roll, translate
from roll.core.algorithms.correction import correct
from roll.core.algorithms.kl import approx_kl
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.core.groups.filters import mean_filter, std_filter
from roll.core.pipeline.roles import loss_spec
from roll.envs.actions import ActionReader
from roll.envs.registry import make_env
from roll.graders.answers import ANSWER_PARTS
from roll.plan.rules.loading import load_config
from roll.prompts.chat_template import chatml

DOUBLE = torch.float64
TRAINED = {
    "response_length": 8,
    "rollout_batch_size": 8,
    "actor_train": {"device_mapping": "0", "training_args": {"per_device_train_batch_size": 64}},
    "actor_infer": {"device_mapping": "1", "generating_args": {}},
}
RATIOS = [0.5, 0.9, 1.0, 1.3, 5.0]
GAMES = {"Maze": {"env_type": "sokoban"}, "Lake": {"env_type": "frozen_lake"}}


def merged(base, changes):
    result = copy.deepcopy(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def made_of(mapping, cls=RLVRConfig):
    first = read_as_roll(mapping, cls)
    return translate(first.mapping, cls, written_for_roll=True).after(first)


def configured(mapping, cls=RLVRConfig):
    return load_config(cls, made_of(mapping, cls).mapping)


def spec_of(**changes):
    config = configured(merged(TRAINED, changes))
    return loss_spec(config, derive(config))


def loss_of(spec, advantage, ratios, score=0.0):
    """[T] the policy loss of a response whose log-probs are all -1."""
    logprobs = torch.full((1, len(ratios)), -1.0, dtype=DOUBLE)
    anchor = logprobs - torch.tensor([ratios], dtype=DOUBLE).log()
    everything = torch.ones(1, len(ratios), dtype=torch.bool)
    inputs = LossInputs(logprobs, anchor, torch.full_like(logprobs, advantage), everything, torch.tensor([score]))
    return get_policy_loss(spec.pg_variant)(inputs, spec.args)[0][0].tolist()


def surrogate(ratio, advantage, low, high, dual):
    """−min(r·A, clip(r, 1−low, 1+high)·A); where A < 0 no more than −(1 + 2·pg_clip)·A (rlvr/actor_worker.py:79-87,
    agentic/agentic_actor_worker.py:61-65: the same)."""
    loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -dual * advantage) if advantage < 0 else loss


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize(
    ("written", "low", "high", "dual"),
    [
        ({}, 0.2, 0.2, 1.4),
        ({"pg_clip": 0.3}, 0.3, 0.3, 1.6),
        # The bound is of pg_clip even where another range clips.
        ({"pg_clip": 0.1, "use_pg_clip_range": True, "pg_clip_low": 0.3, "pg_clip_high": 0.28}, 0.3, 0.28, 1.2),
    ],
)
def test_dual_clip(written, low, high, dual, advantage):
    right = [surrogate(ratio, advantage, low, high, dual) for ratio in RATIOS]
    assert loss_of(spec_of(dual_clip_loss=True, **written), advantage, RATIOS) == pytest.approx(right)


@pytest.mark.parametrize("ratios", [RATIOS, [5.0, 5.0, 5.0], [0.5, 0.5]])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_dual_clip_of_the_sequences_ratio(ratios, advantage):
    """importance_sampling: seq puts exp(mean log r) in the place of every r (rlvr/actor_worker.py:73-76)."""
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    spec = spec_of(dual_clip_loss=True, importance_sampling="seq")
    assert loss_of(spec, advantage, ratios) == pytest.approx([surrogate(mean, advantage, 0.2, 0.2, 1.4)] * len(ratios))


@pytest.mark.parametrize(("score", "weight"), [(1.0, 2.0), (0.0, 3.0)])
def test_topr_by_token(score, weight):
    """A positive score: −w₊·A·ℓ; else −w₋·clip(r_t, 0, 1)·A·ℓ, r_t of the token (rlvr/actor_pg_worker.py:295-304)."""
    train = {"pg_variant": "topr", "topr_positive_weight": 2.0, "topr_negative_weight": 3.0}
    tapers = [1.0 if score > 0 else min(ratio, 1.0) for ratio in RATIOS]
    right = [-weight * taper * 1.5 * -1 for taper in tapers]
    assert loss_of(spec_of(actor_train=train), 1.5, RATIOS, score) == pytest.approx(right)


def test_k3_is_clamped():
    """clamp(e^d − d − 1, −10, 10), d = ℓ_r − ℓ (utils/functionals.py:198-202)."""
    spec = spec_of(use_kl_loss=True, kl_loss_coef=0.1, reference={"device_mapping": "0"})
    policy = torch.tensor([-9.0, -3.0, -1.0, -0.5], dtype=DOUBLE, requires_grad=True)
    reference = torch.full((4,), -1.0, dtype=DOUBLE)
    values = approx_kl(policy, reference, spec.kl_estimator, clamp=spec.kl_clamp)
    assert values.tolist() == pytest.approx([min(math.exp(d) - d - 1, 10) for d in (8.0, 2.0, 0.0, -0.5)])
    assert torch.autograd.grad(values.sum(), policy)[0].tolist() == pytest.approx([0, 1 - math.e**2, 0, 1 - math.exp(-0.5)])


@pytest.mark.parametrize(("level", "share"), [("token", None), ("geometric", 3), ("sequence", 1)])
def test_filters_of_differences(level, share):
    """d_t = p − p_b; by sequence Σ_t d_t, geometric its mean (utils/train_infer_corrections.py:21-30)."""
    behaviour, trained = torch.tensor([[0.2, 0.5, 0.1]]).log(), torch.tensor([[0.3, 0.45, 0.35]]).log()
    differences = [0.1, -0.05, 0.25]
    of_token = differences if share is None else [sum(differences) / share] * 3
    for low in (-0.2, 0.09, 0.12, 0.29):
        rule = {
            "enabled": True,
            "agg_type": level,
            "ratio_enabled": False,
            "diff_enabled": True,
            "diff_low": low,
            "diff_high": 2.0,
        }
        spec = spec_of(train_infer_correction={"filters": [rule]})
        kept = correct(trained, behaviour, torch.ones(1, 3, dtype=torch.bool), spec.correction).kept
        assert kept[0].tolist() == [low <= value for value in of_token]


def test_the_flat_keys_of_sequences_are_means():
    """exp(mean log r) and the mean of p − p_b (rlvr/actor_worker.py:58-59 of ROLL 0.1.3, the last that has these keys)."""
    written = {"train_infer_ratio_seq_mask": True, "train_infer_diff_seq_mask": True, "train_infer_diff_seq_threshold_low": -0.1}
    first, second = configured(written).train_infer_correction.filters
    assert (first.agg_type, first.ratio_enabled, first.ratio_low, first.ratio_high) == ("geometric", True, 0.8, 1.2)
    assert (second.agg_type, second.diff_enabled, second.diff_low, second.diff_high) == ("geometric", True, -0.1, 0.2)


@pytest.mark.parametrize(
    ("written", "shares"),
    [
        # Sums to less than 1: the last has the rest. (rlvr/rlvr_pipeline.py:283-290: ⌊share·B⌋, the last B − the others.)
        ({"a": 0.2, "b": 0.3, "c": 0.1}, {"a": 12.0, "b": 19.0, "c": 33.0}),
        ({"a": 0.33, "b": 0.67}, {"a": 21.0, "b": 43.0}),
        ({"a": 0.25, "b": 0.75}, {"a": 0.25, "b": 0.75}),
        ({"a": 0.001, "b": 0.999}, {"a": 0.001, "b": 0.999}),  # none of a would ever be drawn; ROLL does not start
    ],
)
def test_domain_shares(written, shares):
    mapping = {"rollout_batch_size": 64, "actor_train": {"data_args": {"domain_interleave_probs": written}}}
    assert configured(mapping).actor_train.data_args.domain_interleave_probs == shares


def filtered(size=4, **chosen):
    rewards = {"m": {"worker_cls": "a.B", "query_filter_config": chosen}}
    return configured({"num_return_sequences_in_group": size, "rewards": rewards}).rewards["m"].query_filter_config


@pytest.mark.parametrize("rewards", [[0.0, 0.0, 0.0, 0.1], [0.0, 0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.4]])
@pytest.mark.parametrize("threshold", [0.0, 0.0499, 0.0501, 0.19])
def test_groups_are_dropped_by_the_unbiased_deviation(rewards, threshold):
    """std (unbiased) <= std_threshold (scheduler/user_defined_rollout_loop.py:48-51)."""
    read = filtered(type="std_filter", filter_args={"std_threshold": threshold})
    dropped = std_filter(read.filter_args.std_threshold)(rewards) is not None
    assert dropped == (statistics.stdev(rewards) <= threshold)


def test_filters_without_thresholds_and_of_single_responses():
    """threshold_down is −1 if left out, std_threshold too; a single response passes (user_defined_rollout_loop.py:33-50)."""
    read = filtered(type="mean_filter", filter_args={"threshold_up": 0.9})
    keep = mean_filter(read.filter_args.threshold_down, read.filter_args.threshold_up)
    assert [keep([mean]) is None for mean in (-1.0, -0.9, 0.8, 0.9)] == [False, True, True, False]
    assert std_filter(filtered(type="std_filter").filter_args.std_threshold)([1.0] * 4) is None
    assert filtered(size=1, type="mean_filter", filter_args={"threshold_up": 0.9}).type == "no_filter"


@pytest.mark.parametrize(
    ("prompt", "response", "part"),
    [
        ("q", "so 5</think>\n it is 6 ", "it is 6"),
        ("q", "<think>so 5</think>it is 6", "it is 6"),
        ("q<think>\n", "so 5</think>it is 6", "it is 6"),
        ("q", "first 5\n\nthen 6", "then 6"),
        ("q", "a\n\nb\n\nc</think>d\n\ne", "d\n\ne"),
        ("q", "it is 6", ""),
        ("q", "it is 6\n\n", ""),
        ("q", "</think>5</think>6", ""),
        ("q", "so <think>5</think>6", ""),
        ("q<think>\n", "<think>5</think>6", ""),
    ],
)
def test_where_the_answer_is_looked_for(prompt, response, part):
    """After </think>, else the last paragraph, else nothing; nothing, too, if the marks of thinking are misplaced
    (rewards/math_rule_reward_worker.py:74-121)."""
    reward = configured({"rewards": {"m": {"worker_cls": MATH}}}).rewards["m"]
    assert ANSWER_PARTS[reward.reward_args["answer_part"]](response, prompt) == part
    assert configured({"rewards": {"m": {"worker_cls": "a.B"}}}).rewards["m"].reward_args == {}


def test_generation_has_the_room_that_the_lengths_leave():
    """max_new_tokens = sequence_length − prompt_length, of validation by its own lengths (rlvr/rlvr_config.py:246-252)."""
    written = {
        "prompt_length": 100,
        "sequence_length": 300,
        "response_length": 50,
        "val_prompt_length": 100,
        "val_sequence_length": 150,
        "val_batch_size": 3,
        "actor_infer": {"generating_args": {"max_new_tokens": 64}},
        "validation": {"generating_args": {"max_new_tokens": 64}},
    }
    config = configured(written)
    assert (config.lengths().response, config.actor_infer.generating_args.max_new_tokens) == (200, None)
    assert config.validation.generating_args.max_new_tokens == 50
    assert config.val_batch_size is None, "ROLL evaluates len(val_dataset) prompts (rlvr/rlvr_pipeline.py:867)"


@pytest.mark.parametrize(
    ("written", "train", "validation"),
    [
        ({"train_env_manager": 0.9, "val_env_manager": 0.2}, 0.9, 0.2),
        ({"actor_infer": 0.7, "train_env_manager": 0.9, "val_env_manager": 0.2}, 0.7, None),
        ({"train_env_manager": 0.9}, 0.9, None),
    ],
)
def test_sampling_of_env_managers(written, train, validation):
    """actor_infer's overwrites both; without it the train manager's is actor_infer's, and the validation manager keeps its own
    (agentic/agentic_config.py:256-262)."""
    config = configured({role: {"generating_args": {"temperature": t}} for role, t in written.items()}, AgenticConfig)
    assert config.actor_infer.generating_args.temperature == train
    assert (config.validation.generating_args.temperature if config.validation else None) == validation


@pytest.mark.parametrize("name", ["grpo", "agentic_reinforce"])
def test_agentic_estimators(name):
    """Of an episode the advantage is N(score), N by reward_normalization, times γ a turn (agentic/utils.py:211-232, 442-448; with
    grpo, of which γ counts tokens, for γ = 1)."""
    from tests.trainer.test_agentic_advantages import advantages, grouped, trajectory, turn

    norm = {"grouping": "traj_group_id", "method": "mean_std"}
    gamma = 1.0 if name == "grpo" else 0.5
    config = configured({"adv_estimator": name, "gamma": gamma, "reward_normalization": norm}, AgenticConfig)
    scores = [3.0, 1.0, 0.5]
    episodes = [[turn(score - 1), turn(0.0, tokens=2), turn(1.0)] for score in scores]
    rows = advantages([grouped(0, [trajectory(i, turns) for i, turns in enumerate(episodes)])], config)
    for score, row in zip(scores, rows, strict=True):
        normed = (score - statistics.fmean(scores)) / (statistics.stdev(scores) + 1e-6)
        assert row == pytest.approx([normed * gamma**2, normed * gamma, normed * gamma, normed], rel=1e-5)


def test_agentic_rewards_are_compared_over_the_batch_unless_the_file_says_otherwise():
    """grouping is batch by default (agentic/agentic_config.py, RewardNormalizationConfig)."""
    read = configured({"reward_normalization": {"method": "mean_std"}}, AgenticConfig).reward_normalization
    assert (read.grouping, read.norm_mean_type, read.norm_std_type) == ("batch", "group", "group")
    given = configured({"reward_normalization": {"method": "mean", "grouping": "tags"}}, AgenticConfig)
    assert given.reward_normalization.grouping == "tags"


@pytest.mark.parametrize(
    ("name", "penalty", "paid", "most"),
    [
        ("sokoban", None, -0.1, 20),
        ("sokoban", -0.15, -0.25, 20),
        ("sokoban_native_env", None, -0.2, 10),  # format_penalty is -0.1 there (agentic/env/sokoban/native_env.py:27)
        ("sokoban_native_env", -0.15, -0.25, 10),
    ],
)
def test_a_text_without_an_action_costs_sokobans_step_too(name, penalty, paid, most):
    """Reward of the step without a move, −0.1, plus format_penalty (agentic/env/sokoban/env.py:99-103)."""
    given = {} if penalty is None else {"format_penalty": penalty}
    env = {"env_type": name, "env_config": {"dim_room": [6, 6], "num_boxes": 1, **given}}
    read = configured({"custom_envs": {"S": env}}, AgenticConfig).custom_envs["S"].env_config
    game = make_env(name, read)
    game.reset(1)
    steps = [game.step("I do not know") for _ in range(most)]
    assert [step[1] for step in steps] == pytest.approx([paid] * most)
    assert [step[3] for step in steps].index(True) == most - 1


def test_defaults_of_games():
    """agentic/env/sokoban/env.py:16-20, frozen_lake/env.py:16."""
    made = configured({"custom_envs": GAMES}, AgenticConfig).custom_envs
    assert made["Maze"].env_config == {"dim_room": [10, 10], "num_boxes": 4, "max_steps": 20, "format_penalty": -0.1}
    assert made["Lake"].env_config == {"is_slippery": True}


def test_the_second_group_is_the_action():
    """Of two groups the first is the thinking, the second the action (agentic/env/parse_action_utils.py:19-22)."""
    pattern = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"
    env = {"env_type": "frozen_lake", "env_config": {"action_pattern": pattern, "is_slippery": False}}
    read = configured({"custom_envs": {"L": env}}, AgenticConfig).custom_envs["L"].env_config
    reader = ActionReader(Discrete(2), ("Left", "Right"), read["action_pattern"])
    assert reader.read("<think>Left or right?</think>\n<answer>Right</answer>") == 1
    assert reader.how_to_answer.endswith("like this: <think>...</think> <answer>Left</answer>")


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        (r"(a)(b)", r"(?:a)(b)"),
        (r"([(\]]a)(b)", r"(?:[(\]]a)(b)"),
        (r"[]()](x)(y)", r"[]()](?:x)(y)"),
        (r"(?P<a>x)(?:q)(?P<b>y)", r"(?:x)(?:q)(?P<b>y)"),
        (r"(a(b)c)", r"(?:a(b)c)"),
        (r"(a)(b)(c)", r"(?:a)(b)(?:c)"),
        (r"\((a)\)", None),
        (r"(a)(b)\1", None),
        ("(a", None),
    ],
)
def test_only_the_second_group_captures(pattern, rewritten):
    assert only_group(pattern, 2) == rewritten


def test_the_template_empty_is_chatml():
    """datasets/chat_template.py:65."""
    data = configured({"actor_train": {"data_args": {"template": "empty"}}}).actor_train.data_args
    assert data.template == "chatml"
    assert chatml([{"role": "user", "content": "1+1?"}], "row") == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert (
        configured({"actor_train": {"data_args": {"template": "empty"}}}, AgenticConfig).actor_train.data_args.template
        == "native"
    )


def test_what_the_user_writes_in_this_projects_words_stays():
    mapping = {"dual_clip_loss": True, "dual_clip_c": 3.0, "use_kl_loss": True, "kl_loss_clamp": 5.0}
    mapping["actor_train"] = {"pg_variant": "topr", "topr_ratio_level": "sequence"}
    assert made_of(mapping).mapping == {name: value for name, value in mapping.items() if name != "dual_clip_loss"}


def test_readings_are_for_files_of_roll_alone():
    mapping = {"use_kl_loss": True, "adv_estimator": "agentic_reinforce", "custom_envs": GAMES}
    assert translate(mapping, AgenticConfig).mapping == mapping


def told(mapping, cls=RLVRConfig):
    return {note.key: note.message for note in differences_of(configured(mapping, cls), mapping)}


DOMAINS = {name: {"worker_cls": "mine.Reward"} for name in ("easy", "hard")}
FILTERED = {"filters": [{"enabled": True, "agg_type": "token", "ratio_enabled": True}]}
PG_WORKER = "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"
KIMI = {"actor_train": {"pg_variant": "kimi15", "worker_cls": PG_WORKER}, "loss_agg_mode": "token-mean"}
MANAGERS = "roll.pipeline.agentic.env_manager"
CONCAT = f"{MANAGERS}.step_concat_env_manager.StepConcatEnvManager"
NATIVE = f"{MANAGERS}.agent_native_env_manager.AgentNativeStepEnvManager"
PROXY = f"{MANAGERS}.proxy_env_manager.ProxyEnvManager"
RUNNER = "roll.pipeline.agentic.agent_runner.gem_runner.GEMRunner"


def of_env(**env):
    return {"custom_envs": {"G": {"env_type": "gem", **env}}}


@pytest.mark.parametrize(
    ("env", "manager", "lacking"),
    [
        ({"env_manager_cls": PROXY, "agent_runner_cls": RUNNER}, "TrajEnvManager", []),
        (
            {"env_manager_cls": PROXY, "agent_runner_cls": "mine.Runner"},
            None,
            ["agent_runner_cls", "env_manager_cls"],
        ),
        (
            {"env_manager_cls": PROXY, "agent_runner_cls": RUNNER, "env_config": {"trajectory_mode": "step"}},
            None,
            ["agent_runner_cls", "env_manager_cls"],
        ),
        ({"env_manager_cls": CONCAT, "agent_runner_cls": RUNNER}, "StepConcatEnvManager", []),
        ({"tool_wrapper": {"tool_configs": [{"tool_id": "python_code"}]}}, None, []),
    ],
)
def test_an_agent_that_roll_runs_beside_its_environment_is_played_or_refused(env, manager, lacking):
    """env_manager/proxy_env_manager.py, agent_runner/gem_runner.py: texts, one sample for a conversation."""
    read = translate(of_env(**env), AgenticConfig)
    found = read.mapping["custom_envs"]["G"]
    assert str(found.get("env_manager_cls", "None")).rpartition(".")[2] == str(manager)
    assert "agent_runner_cls" not in found
    assert sorted(note.key.rpartition(".")[2] for note in read.lacking) == lacking


def test_a_native_managers_templates_stay_placeholders():
    """ROLL neither shows them nor adds an environment's rules."""
    env = {"env_manager_cls": NATIVE, "agent_system_template": "placeholder", "agent_template": "placeholder"}
    read = translate(of_env(**env), AgenticConfig, written_for_roll=True)
    assert read.mapping["custom_envs"]["G"] == {"env_type": "gem", **env}


STEPWISE = {"G": {"env_type": "gem", "env_manager_cls": "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"}}


@pytest.mark.parametrize(
    ("mapping", "key", "words"),
    [
        ({}, "old_logprobs", "recomputes at the start"),  # init_kl_coef is 0.2
        ({"init_kl_coef": 0}, "old_logprobs", "all are 1"),
        ({"init_kl_coef": 0, "enable_old_logprobs_recompute": True}, "old_logprobs", "by at most 5"),
        ({"train_infer_ratio_mask": True}, "train_infer_correction.filters", "divides by the number of the others"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_agg_mode", "grow with the batch"),
        ({"actor_infer": {"generating_args": {"temperature": 0.9}}}, "actor_infer.generating_args.temperature", "softmax"),
        ({"actor_train": {"pg_variant": "topr"}}, "actor_train.pg_variant", "trains ppo"),
        ({"add_token_level_kl": True, "reward_clip": 5}, "reward_clip", "clips their sum"),
        ({"add_token_level_kl": True, "importance_sampling": "seq"}, "importance_sampling", "mean over the response"),
        ({"add_token_level_kl": True, "target_kl": 0.1, "kl_horizon": 10}, "target_kl", "after each domain"),
        ({"whiten_rewards": True}, "whiten_rewards", "ROLL shifts"),
        ({"adv_estimator": "gae"}, "adv_estimator", "padding"),
        # utils/functionals.py:571 (one key for every domain), :722; the field reward_norm and the flat masks are in no dataclass.
        ({"reward_norm": "batch"}, "reward_norm", "raw rewards"),
        ({"reward_norm": "group", "norm_mean_type": None}, "reward_norm", "raw rewards"),
        ({"norm_std_type": "running", "rewards": DOMAINS}, "norm_std_type", "one for all domains"),
        ({"norm_mean_type": "running", "rewards": DOMAINS}, "norm_mean_type", "one for all domains"),
        ({"error_max_len_clip": True, "error_max_len_threshold": 8}, "error_max_len_clip", "other than 0 and 1"),
        ({"train_infer_ratio_mask": True}, "train_infer_ratio_mask", "ROLL no longer reads it"),
        ({"train_infer_diff_seq_mask": True}, "train_infer_diff_seq_mask", "ROLL no longer reads it"),
        (
            {"use_rollout_importance_sampling_ratio": True},
            "use_rollout_importance_sampling_ratio",
            "ROLL no longer reads it",
        ),
        ({"adv_estimator": "gae"}, "adv_estimator", "mean over responses"),  # base_worker.py:678
        ({"use_kl_loss": True, "train_infer_correction": FILTERED}, "use_kl_loss", "only the tokens"),  # rlvr/actor_worker.py:55
        (
            {"custom_envs": GAMES, "entropy_loss_coef": 0.1, "train_infer_correction": FILTERED},
            "entropy_loss_coef",
            "only the tokens",
        ),
        ({"entropy_loss_coef": 0.1, "max_len_mask": True}, "entropy_loss_coef", "left out"),  # rlvr/actor_worker.py:115
        (KIMI | {"difficulty_mask": True}, "actor_train.pg_variant", "penalty"),  # utils/functionals.py:256
        ({"actor_train": {"training_args": {"warmup_steps": 3}}}, "actor_train.training_args.warmup_steps", "rate of 0"),
        (
            {"actor_train": {"model_args": {"ulysses_size": 2}, "strategy_args": {"strategy_name": "deepspeed_train"}}},
            "actor_train.model_args.ulysses_size",
            "with fsdp2_train alone",  # base_config.py:793
        ),
        ({"async_generation_ratio": 1}, "async_generation_ratio", "ROLL cancels"),
        ({"rewards": {"m": {"worker_cls": MATH}}}, "rewards.m.worker_cls", "strict"),
        ({"custom_envs": GAMES, "gamma": 0.9}, "gamma", "by turns"),
        ({"custom_envs": GAMES}, "custom_envs.Maze.env_config.action_pattern", "in ROLL the first"),
        ({"custom_envs": GAMES}, "custom_envs.Lake.env_type", "other words"),
        (
            {"custom_envs": {"Lake": {"env_type": "frozen_lake", "env_config": {"max_steps": 5}}}},
            "custom_envs.Lake.env_config.max_steps",
            "alone does",
        ),
        ({"custom_envs": STEPWISE, "adv_estimator": "gigpo"}, "adv_estimator", "pools equal states"),
        ({"custom_envs": STEPWISE}, "custom_envs.G.env_manager_cls", "its own reward"),
        (
            {"custom_envs": {"G": {**STEPWISE["G"], "agent_template": "{history} {observation}"}}},
            "custom_envs.G.history_length",
            "without a readable action",
        ),
        ({"custom_envs": STEPWISE}, "batch_adjust_mode", "copies random samples"),
        (of_env(env_manager_cls=CONCAT), "batch_adjust_mode", "copies random samples"),
        (of_env(env_manager_cls=CONCAT, agent_template="{history}"), "custom_envs.G.history_length", "shows one less"),
        (of_env(env_manager_cls=NATIVE), "custom_envs.G.env_manager_cls", "enable_thinking: false"),
        (of_env(tool_wrapper={"tool_configs": []}), "custom_envs.G.tool_wrapper", "whatever sandbox_type says"),
        ({"custom_envs": GAMES, "val_env_manager": {}}, "val_env_manager", "same episodes"),
    ],
)
def test_what_means_something_else_is_told(mapping, key, words):
    cls = AgenticConfig if "custom_envs" in mapping else RLVRConfig
    assert words in told(mapping, cls)[key]


def test_what_is_not_otherwise_is_not_told():
    quiet = {
        "force_disable_old_logprobs_recompute": True,
        "actor_train": {"pg_variant": "vanilla", "worker_cls": PG_WORKER},
    }
    assert told(quiet) == {}
    assert "5 tokens or fewer" in told(quiet | {"prompt_length": 8})["prompt_length"]
    by_the_estimator = {"reward_norm": "batch", "adv_estimator": "grpo"}
    of_one_domain = {"norm_mean_type": "running", "rewards": {"easy": DOMAINS["easy"]}}
    switched_off = {"reward_norm": None, "train_infer_ratio_mask": False, "use_rollout_importance_sampling_ratio": False}
    penalised = {"use_kl_loss": True, "entropy_loss_coef": 0.1}
    for each in (by_the_estimator, of_one_domain, switched_off, penalised, {"norm_mean_type": "batch", "reward_norm": "batch"}):
        assert told(quiet | each) == {}
    assert "actor_train.pg_variant" not in told(KIMI)
    assert told({**quiet, "custom_envs": {"W": {"env_type": "webshop"}}}, AgenticConfig) == {}


@pytest.mark.parametrize("table", [READINGS, DIFFERENCES])
def test_every_entry_is_about_a_key_of_roll(table):
    known = {*keys(), "old_logprobs", *(rule.path for rule in keys_distillation.RULES)}
    blocks = {path.rpartition(".")[0] for path in known}
    lost = [each.key for each in table if each.key not in known | blocks and ".env_config." not in each.key]
    assert lost == []


JUNK = st.sampled_from([None, True, -1, 0, 10**400, float("nan"), float("inf"), "x", "1e999", [], [1], {}, {"a": 1}, {1: {}}])
WATCHED = [
    *sorted({tuple(key.replace("<name>", "a").split(".")) for key in keys() if "<role>" not in key}),
    ("custom_envs", "a", "env_config", "action_pattern"),
    ("custom_envs", "a", "env_config", "format_penalty"),
]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(WATCHED), JUNK), max_size=5), st.sampled_from([RLVRConfig, AgenticConfig]))
def test_whatever_is_written_reading_is_pure_and_never_fails(entries, cls):
    mapping = {"custom_envs": {"a": {"env_type": "sokoban"}}, "rewards": {"a": {"worker_cls": MATH}}, "dual_clip_loss": True}
    for path, value in entries:
        block = mapping
        for name in path[:-1]:
            block = block.setdefault(name, {})
            if not isinstance(block, dict):
                break
        else:
            block[path[-1]] = value
    before = repr(mapping)
    made = read_as_roll(mapping, cls)
    assert repr(mapping) == before
    assert repr(DROP) not in repr(made.mapping)
