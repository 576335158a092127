"""What tools/roll_files.py says of a folder of ROLL's files."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN = runpy.run_path(str(ROOT / "tools" / "roll_files.py"))["main"]
RUN = """\
prompt_length: 16
response_length: 16
rollout_batch_size: 64
num_gpus_per_node: 2
pretrain: ${oc.env:NO_SUCH_VARIABLE}
actor_train:
  device_mapping: list([0])
  model_args: {flash_attn: fa2}
  data_args: {file_name: prompts.jsonl}
actor_infer: {device_mapping: "1"}
rewards: {math: {worker_cls: a.B}}
"""


def test_each_file_is_answered_and_what_keeps_them_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "good.yaml").write_text(RUN)
    (tmp_path / "deep" / "mock.yaml").write_text(RUN + "rollout_mock: {enable: true, mode: mock}\n")
    (tmp_path / "next.yaml").write_text(
        RUN.replace("${oc.env:NO_SUCH_VARIABLE}", "Qwen3-Next-80B").replace(
            "model_args:", "strategy_args: {strategy_name: megatron_train}\n  model_args:"
        )
    )
    (tmp_path / "other.yaml").write_text(RUN + "opsd_mode: a\n")
    (tmp_path / "broken.yaml").write_text(RUN + "seed: ${nothing}\n")
    (tmp_path / "part.yaml").write_text("custom_env: {}\n")
    (tmp_path / "empty.yaml").write_text("")
    assert MAIN([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = {line.split()[-1]: line.split()[:2] for line in lines if " told " in line}
    assert {name: state for name, (state, _) in files.items()} == {
        "good.yaml": "starts",
        "deep/mock.yaml": "loads",
        "next.yaml": "loads",
        "other.yaml": "refused",
        "broken.yaml": "refused",
    }
    assert int(files["good.yaml"][1]) > 3
    assert any(line.startswith("    1  rollout_mock: ") for line in lines)
    assert any("the Megatron back end does not support qwenN_next" in line for line in lines)
    assert lines[-1] == "4 files of RLVR and agentic text pipelines: 3 load, 1 would start; 1 of others"
