"""benchmarks/gpu.py as far as it needs no GPU: FLOPs of a token, peaks by device name, arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll.core.distributed.devices import Inventory

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are scripts: they import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("tied", [True, False])
def test_training_flops_are_those_that_torch_counts(tied: bool) -> None:
    """A forward and backward pass over one sample. torch counts matrix products; its fused attention, which computes the scores
    anew in the backward pass, is left out for one whose products are visible."""
    from gpu import arithmetic

    length = 64
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.int64), use_cache=False).logits.sum().backward()
    # Norms and biases are parameters that multiply no matrix: 1 % here, less in a real model.
    assert arithmetic(model).training(length) * length == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_generation_flops_are_a_third_of_training_at_the_mean_context() -> None:
    from gpu import Arithmetic

    counts = Arithmetic(parameters=494_000_000, attention=24 * 14 * 64)
    contexts = [24 + i - 1 for i in range(1, 513)]
    assert counts.generation(24, 512) == pytest.approx(sum(counts.training(t) / 3 for t in contexts) / len(contexts))
    assert counts.training(2048) == 6 * 494e6 + 12 * 21504 * 2048


def test_utilisation_is_the_share_of_the_peak() -> None:
    from gpu import Row

    assert Row("fsdp2", tokens_per_s=1e5, flops_per_token=3.12e9, peak_bytes=0).mfu(312e12) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", None),
        ("NVIDIA L40", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_by_device_name(name: str, tflops: int | None) -> None:
    from gpu import peak_flops

    assert peak_flops(name) == (None if tflops is None else tflops * 1e12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no GPU: torch.cuda.is_available() is False"),
        (["--length", "1"], "--length: 1 leaves no token to train"),
        (["--steps", "0"], "--steps: '0' is not a number of at least 1"),
        (["--vllm_share", "1.5"], "--vllm_share: 1.5 is not in (0, 1]"),
        (["--peak_tflops", "0"], "--peak_tflops: 0.0 is not positive"),
        (["--load", "groups", "--length", "512"], "--prompt: 512 of --length 512 leave 0 tokens of a response"),
        (["--load", "tails"], "--load: torch, torch-compiled compute samples of one length"),
        (["--load", "turns", "--length", "19"], "--length: 19 leaves 10 turns less than two tokens each"),
        (["--sides", "tensorrt"], "invalid choice: 'tensorrt'"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu import parse

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        parse()
    assert message in capsys.readouterr().err


def test_vllm_is_looked_for_in_the_interpreter_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu

    known = []
    monkeypatch.setattr(gpu, "check_installed", known.append)
    assert gpu.missing("vllm", "/opt/vllm/bin/python") is None and known == ["/opt/vllm/bin/python"]
    monkeypatch.undo()
    assert "/no/such/python" in (gpu.missing("vllm", "/no/such/python") or "")


def test_runs_find_what_the_users_path_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pipeline_run

    def popen(command: list[str], env: dict[str, str], **options: object) -> None:
        raise RuntimeError(env["PYTHONPATH"])

    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    monkeypatch.setattr(pipeline_run.subprocess, "Popen", popen)
    with pytest.raises(RuntimeError, match=r":/of/the/user$"):
        pipeline_run.run_pipeline(Path("run.yaml"), [], tmp_path, local=True)


def test_weight_updates_are_measured_on_gpus_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    import weight_update

    found = Inventory("cuda", 1, 2, 8)
    monkeypatch.setattr(weight_update, "detect", lambda: found)
    assert weight_update.devices(2).kind == "cuda"
    with pytest.raises(SystemExit, match="3 GPUs are needed, there are 2"):
        weight_update.devices(3)
    found = Inventory("cpu", 1, 2, 2)
    assert (weight_update.devices(3).kind, weight_update.devices(3).per_node) == ("cpu", 3)


@pytest.mark.parametrize("kind", ["groups", "tails"])
def test_samples_of_a_group_share_a_prompt(kind: str) -> None:
    from argparse import Namespace

    from gpu import GROUP, load

    batch = load(Namespace(load=kind, size="1M", sequences=2 * GROUP, length=600, prompt=32))
    rows = batch.tokens.split(batch.lengths.tolist())
    assert all(torch.equal(row[:32], rows[i - i % GROUP][:32]) for i, row in enumerate(rows))
    assert not torch.equal(rows[0][:32], rows[GROUP][:32]) and not torch.equal(rows[0][32:64], rows[1][32:64])
    assert int(batch.loss_mask.sum()) == batch.num_tokens - 32 * len(rows)
    assert (len(set(batch.lengths.tolist())) > 1) == (kind == "tails") and int(batch.lengths.max()) <= 600


def test_a_turn_of_an_episode_begins_with_the_turns_before_it() -> None:
    from argparse import Namespace

    from gpu import TURNS, load

    batch = load(Namespace(load="turns", size="1M", sequences=2 * TURNS + 3, length=600))
    rows, trained = batch.tokens.split(batch.lengths.tolist()), batch.loss_mask.split(batch.lengths.tolist())
    assert batch.lengths.tolist() == [60 * (i % TURNS + 1) for i in range(2 * TURNS + 3)]
    assert all(torch.equal(row[:-60], rows[i - 1]) for i, row in enumerate(rows) if i % TURNS)
    assert not torch.equal(rows[0], rows[TURNS])
    assert all(mask.nonzero().flatten().tolist() == list(range(len(mask) - 30, len(mask))) for mask in trained)


def test_kernels_are_told_by_kind() -> None:
    from device_profile import kind_of, profiled

    names = (
        "flash_fwd_kernel",
        "nvjet_tst_128x256",
        "multi_tensor_apply_kernel<FusedAdamW>",
        "Memcpy DtoD",
        "triton_red_fused_exp",
    )
    assert [kind_of(name) for name in names] == ["attention", "products", "optimiser", "copies", "element by element"]
    found = profiled(lambda: torch.ones(64, 64) @ torch.ones(64, 64), 1.0)
    assert found["launched"] > 1 and sum(found["kinds"].values()) == pytest.approx(1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu import parse

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--sides", "hf_infer", "megatron"])
    with pytest.raises(SystemExit, match="2"):
        parse()
    assert "--sides: megatron needs requirements/megatron.txt" in capsys.readouterr().err


def test_a_side_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A borrowed device is there for minutes."""
    import gpu

    def measured(side: str, *arguments: object) -> gpu.Row:
        if side == "fsdp2":
            raise RuntimeError("no kernel image is available")
        return gpu.Row(side, 10.0, 1.0, 0, 5.0)

    found = tmp_path / "rows.json"
    arguments = ["--device", "cpu", "--size", "1M", "--json", str(found), "--sides", "torch-compiled", "fsdp2", "megatron"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    monkeypatch.setattr(gpu, "in_new_process", measured)
    monkeypatch.setattr(gpu, "missing", lambda side, python: None)
    monkeypatch.setattr(gpu, "save_results", lambda name, results: None)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    assert "fsdp2                failed: RuntimeError: no kernel image is available" in capsys.readouterr().out
    assert [row["side"] for row in json.loads(found.read_text())["rows"]] == ["torch-compiled", "megatron"]
