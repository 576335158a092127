"""docs_roll/check.md shows what `roll check` really prints."""

import json
from pathlib import Path

from roll.cli import check
from roll.core.distributed.machine import Machine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs_roll" / "check.md"
QWEN2_5_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip


def printed(tmp_path, monkeypatch, capsys) -> str:
    """The output on a machine of eight accelerators of 80 GiB that has the model."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_5_7B))
    machine = Machine(cpus=96, memory=1 << 40, accelerators=(80 << 30,) * 8)
    monkeypatch.setattr(check, "this_machine", lambda: machine)
    arguments = ["--config_path", "pkg://qwen2.5-7B-rlvr_megatron", "--config_name", "rlvr_config_async", f"pretrain={tmp_path}"]
    assert check.main(arguments) == 0
    lines = capsys.readouterr().out.replace(str(ROOT), "/path/to/roll").splitlines()
    return "\n".join(line for line in lines if str(tmp_path) not in line)


def test_the_page_shows_the_real_output(tmp_path, monkeypatch, capsys):
    shown = PAGE.read_text().split("```text\n", 1)[1].split("\n```", 1)[0]
    assert shown == printed(tmp_path, monkeypatch, capsys)
