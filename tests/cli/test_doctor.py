"""`roll doctor`: one line a finding with its fix, the exit code, and what limits of a machine it tells."""

import json
import sys
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest

from roll.cli import doctor
from roll.cli.findings import Finding
from roll.core.configs.worker import RewardConfig
from roll.core.distributed.machine import Machine
from roll.core.errors import SandboxFailed
from roll.graders.sandbox import sandbox

GIB = 1 << 30
LAPTOP = Machine(cpus=2, memory=16 * GIB, accelerators=())
SERVER = Machine(cpus=8, memory=64 * GIB, accelerators=(80 * GIB,))


@pytest.fixture
def quick(monkeypatch):
    """Torch and Ray are not started."""
    monkeypatch.setattr(doctor, "torch_starts", lambda machine, limit: Finding("ok", "torch", "starts"))
    monkeypatch.setattr(doctor, "compilation", lambda machine, limit: Finding("ok", "compilation", "works"))
    monkeypatch.setattr(doctor, "ray_starts", lambda limit: Finding("warn", "ray starts", "no", "run with --local"))


def test_a_line_a_finding_with_state_and_fix(quick, capsys):
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "missing") for line in lines)
    assert any(line.startswith("ok ") and "torch 2." in line and "hydra-core" in line for line in lines)
    assert any(line.startswith("warn") and "ray starts" in line and "fix: run with --local" in line for line in lines)
    about = {"python", "packages", "deepspeed", "megatron", "hf_infer", "vllm", "sglang", "processors", "memory"}
    about |= {"accelerators", "shared memory", "disk", "open files", "ports", "torch", "code sandbox"}
    assert all(any(f"  {name} " in line for line in lines) for name in about)


def test_what_every_run_needs_decides_the_exit_code(quick, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "torch_starts", lambda machine, limit: Finding("missing", "torch", "cannot be imported", "install it")
    )
    assert doctor.main(["--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"]
    assert {"state": "missing", "name": "torch", "text": "cannot be imported", "fix": "install it"} in told["findings"]


def test_packages_are_compared_with_what_the_metadata_ask_for(monkeypatch):
    wanted = ["numpy>=99", "rich>=1", "no-such-package>=2", 'deepspeed<1; extra == "deepspeed"', 'peft; extra == "lora"']
    there = {"numpy": "2.0", "rich": "15.0", "deepspeed": "2.60.0", "roll": "0.1.0"}

    def version(name: str) -> str:
        if name not in there:
            raise doctor.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(doctor, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor, "version", version)
    found = {finding.name: finding for finding in doctor.packages()}
    assert found["packages"].state == "missing"
    assert found["packages"].text == "numpy 2.0 is not >=99, no-such-package is not installed"
    assert found["packages"].fix == "pip install 'numpy>=99' 'no-such-package>=2'"
    assert (found["deepspeed"].state, found["lora"].state) == ("warn", "warn")
    assert "deepspeed 2.60.0 is not <1" in found["deepspeed"].text and "peft is not installed" in found["lora"].text


def test_limits_of_the_machine_are_warned_of(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(64 << 20, 0, 64 << 20))
    assert doctor.shared_memory(tmp_path).state == "warn"
    assert "--shm-size" in doctor.shared_memory(tmp_path).fix
    assert doctor.disk(tmp_path / "not" / "made" / "yet").state == "warn"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(64 * GIB, 0, 64 * GIB))
    assert doctor.shared_memory(tmp_path).state == doctor.disk(tmp_path).state == "ok"
    assert doctor.shared_memory(tmp_path / "nowhere").state == "warn"
    assert (doctor.open_files(256).state, doctor.open_files(65536).state) == ("warn", "ok")
    assert "ulimit" in doctor.open_files(256).fix


def test_an_engine_is_told_by_version_and_place_or_by_what_is_missing():
    vllm, sglang = list(doctor.engines(sys.executable, "/no/such/python"))[1:]
    assert vllm.state == "ok" or "vllm" in vllm.text
    assert sglang.state == "warn" and "/no/such/python" in sglang.text and sglang.fix


def test_a_torch_that_sees_no_accelerator_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH", "print('2.13.0+cpu', 0)")
    assert doctor.torch_starts(LAPTOP, 30).state == "ok"
    blind = doctor.torch_starts(SERVER, 30)
    assert blind.state == "missing" and "none of the 1 accelerators" in blind.text
    monkeypatch.setattr(doctor, "_TORCH", "raise ImportError('libc10.so')")
    broken = doctor.torch_starts(LAPTOP, 30)
    assert broken.state == "missing" and "libc10.so" in broken.text


@pytest.mark.slow
def test_what_hangs_is_killed_with_all_that_it_started(tmp_path):
    program = (
        "import subprocess, sys, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    ended = doctor.run_limited(program, 3)
    assert "more than 3 s" in ended.problem
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_time_limit_is_a_number_above_0(limit, capsys):
    assert doctor.main([f"--time_limit={limit}"]) == 2
    assert "--time_limit" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.slow
def test_ray_starts_here():
    assert doctor.ray_starts(60).state == "ok"


NONE = {"in_force": ["filter: the listed calls"], "missing": ["namespaces: no other process (forbidden); without: it can tell"]}


def test_what_the_code_sandbox_does_not_hold_against_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "state_here", lambda: NONE)
    found = doctor.sandbox()
    assert (found.state, found.text) == ("warn", f"filter; not by {NONE['missing'][0]}")
    assert "isolation: bubblewrap" in found.fix

    def fails():
        raise SandboxFailed("only its owner may enter /root")

    monkeypatch.setattr(doctor, "state_here", fails)
    found = doctor.sandbox()
    assert (found.state, found.text) == ("warn", "none here: only its owner may enter /root")


def test_a_check_tells_it_of_each_domain_that_runs_programs_here(monkeypatch):
    def told(**reward_args):
        reward = RewardConfig(worker_cls="a.b.CodeSandboxRewardWorker", reward_args=reward_args)
        other = RewardConfig(worker_cls="a.b.MathRuleRewardWorker")
        return list(doctor.sandbox_here(SimpleNamespace(reward_configs={"code": reward, "math": other})))

    monkeypatch.setattr(doctor, "state_here", lambda isolation: NONE)
    assert told() == [f"rewards.code: programs are shut in by filter; not by {NONE['missing'][0]}"]
    assert told(code_url="http://127.0.0.1:1/run_code") == []
    monkeypatch.setattr(sandbox.shutil, "which", lambda program: None)
    (line,) = told(isolation="bubblewrap")
    assert "would be refused: rewards.code: reward_args.isolation is 'bubblewrap', but bwrap is not installed" in line
    (line,) = told(isolation="podman")
    assert "reward_args.isolation is 'podman'; it must be built-in, bubblewrap, or the words of a command" in line


def test_compilation_is_tried(monkeypatch) -> None:
    works = doctor.compilation(LAPTOP, 120)
    assert (works.state, works.text.split(",")[0]) == ("ok", "works")
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    fails = doctor.compilation(LAPTOP, 120)
    assert fails.state == "ok" and "trained eagerly" in fails.text and "/no/compiler" in fails.text
    assert doctor.compilation(SERVER, 120).state == "warn"
