"""Mathematics with GSM8K's own columns, code in the sandbox, and instructions, in one run."""

import json
from collections import Counter

import pytest

REWARDS = "roll.pipeline.rlvr.rewards"
SHARES = {"gsm8k": 0.5, "code": 0.25, "follow": 0.25}


def rows():
    for i in range(10):
        yield {"question": f"{i}+7=", "answer": f"{i}+7={i + 7}\n#### {i + 7}"}
        tests = [{"stdin": str(i), "expected_stdout": str(2 * i)}]
        yield {"question": f"2-{i}=", "answer": "", "tag": "code", "test_cases": tests}
        instructions = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        yield {"question": f"{i}-{i}=", "answer": "", "tag": "follow", **instructions}


@pytest.fixture
def three_domains(tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    workers = {
        "gsm8k": f"{REWARDS}.math_rule_reward_worker.MathRuleRewardWorker",
        "code": f"{REWARDS}.code_sandbox_reward_worker.CodeSandboxRewardWorker",
        "follow": f"{REWARDS}.ifeval_rule_reward_worker.GeneralRuleRewardWorker",
    }
    data = {"file_name": str(path), "prompt": "question", "ground_truth": "answer", "default_tag": "gsm8k"}
    return {
        "rewards": {name: {"worker_cls": cls, "max_concurrency": 1, "timeout_s": 60.0} for name, cls in workers.items()},
        "actor_train.data_args": data | {"template": "none", "domain_interleave_probs": SHARES},
        "async_generation_ratio": 1,
        "rollout_log_per_step": 16,
    }


@pytest.mark.timeout(300)
def test_three_domains_have_their_rewards_and_shares_and_a_resumed_run_goes_on_in_order(lab, make_config, three_domains):
    whole = lab.run(make_config(three_domains, exp_name="whole", max_steps=6))
    lab.run(make_config(three_domains, exp_name="parts", max_steps=3))
    parts = lab.run_local(make_config(three_domains, exp_name="parts", max_steps=6, resume_from_checkpoint=True))
    assert (parts.summary["status"], parts.summary["resumed_from_step"]) == ("finished", 3)
    lab.check_accounts(whole, make_config(three_domains, max_steps=6))

    in_order = [row["prompt_uid"] for row in sorted(whole.rows("groups"), key=lambda row: row["group_id"])]
    for count in range(4, len(in_order) + 1, 4):
        domains = Counter(uid.split("/")[0] for uid in in_order[:count])
        assert domains == {domain: share * count for domain, share in SHARES.items()}, "exact, at every moment"
    for run in (whole, parts):
        trained = [row["prompt_uid"] for row in run.rows("groups") if row["status"] == "trained"]
        assert sorted(trained) == sorted(in_order[:24]), "none twice, none left out"

    for domain in SHARES:
        means = [row[f"rewards/{domain}/mean"] for row in whole.steps()]
        assert len(means) == 6 and all(0 <= mean <= 1 for mean in means)
        assert any(f"idle_share/rewards.{domain}" in row for row in whole.steps())
    answered = [row for row in whole.trained_samples() if row["domain"] == "follow" and row["response"].strip()]
    assert answered and all(row["reward"] == 1.0 for row in answered), "there is no comma to be said"
    code = [row["reward"] for row in whole.trained_samples() if row["domain"] == "code"]
    assert code and set(code) == {0.0}, "no text of a random model is a program that doubles"
    assert whole.summary["reward_errors"] == {}
