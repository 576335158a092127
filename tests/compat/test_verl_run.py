"""A script of verl's, with its rows and its reward function, is a run of two steps."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
MODEL_PATH=${MODEL_PATH:?}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=rows.parquet \\
    data.train_batch_size=4 \\
    data.max_prompt_length=24 \\
    data.max_response_length=1 \\
    actor_rollout_ref.model.path=$MODEL_PATH \\
    actor_rollout_ref.actor.ppo_mini_batch_size=2 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.name=hf \\
    actor_rollout_ref.rollout.n=4 \\
    custom_reward_function.path=scores.py \\
    custom_reward_function.name=judge \\
    trainer.logger='["console"]' \\
    trainer.project_name=p trainer.experiment_name=e \\
    trainer.n_gpus_per_node=1 trainer.total_training_steps=2 "$@"
"""
SCORES = """
def judge(data_source, solution_str, ground_truth, extra_info=None):
    score = float(ord(solution_str[0]) % 2) if solution_str else 0.0
    return {"score": score, "of": extra_info["index"], "known": data_source == "sums"}
"""


def environment(model):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MODEL_PATH": str(model)}


@pytest.mark.slow
def test_a_script_runs_as_it_stands(embedded_task, forks, tmp_path):
    prompts = [f"{a}+{a + 1}=" for a in range(10, 18)]
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
            "extra_info": {"index": index},
        }
        for index, text in enumerate(prompts)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "scores.py").write_text(SCORES)
    (tmp_path / "run.sh").write_text(SCRIPT)
    command = ["-m", "roll.cli.main", "train", "rlvr", "--local", "--config_path", ".", "--config_name", "run.sh"]
    command += ["actor_train.data_args.template=chatml", "rollout_log_per_step=99"]  # the model has no chat template
    forks.run(command, tmp_path, environment(embedded_task / "model"), tmp_path / "log.txt")
    run = tmp_path / "checkpoints" / "p" / "e"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["groups"]["trained"]) == ("finished", 2, 8)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 2 * 4 * 4
    for each in samples:
        said = each["response"]
        assert each["reward"] == (float(ord(said[0]) % 2) if said else 0.0), each
        assert each["ground_truth"] == "1" and each["reward_parts"]["known"] == 1.0
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("actor/kl_loss" in each for each in metrics)
