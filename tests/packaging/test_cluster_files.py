"""The files in examples/cluster, as far as they can be checked where there is no cluster and no builder of images: what they name
is there, the runs that they start pass `roll check`, and the scripts call their tools as their heads say; the tools are stand-ins
that write down how they were called."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roll.cli.check import main as check
from roll.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "cluster"
DOCKERFILES = sorted(FILES.glob("Dockerfile.*"))
NODES, GPUS = 3, 8
RECORD = '#!/usr/bin/env bash\nprintf \'%s\\n\' "RAY_ADDRESS=${RAY_ADDRESS-}" "$@" > "$CALLS/$(basename "$0")"\n'


def test_each_file_says_whether_it_was_tried():
    assert len(DOCKERFILES) == 2
    tried = {each: "Not built yet" for each in DOCKERFILES} | {FILES / "slurm.sh": "Run on 2026-11-28 in Slurm 22.05"}
    for file in FILES.iterdir():
        head = "\n".join(line for line in file.read_text().splitlines()[:12] if line.startswith("#"))
        assert tried.get(file, "Not run on a cluster yet") in head, file.name


def assert_is_a_run(command, nodes=NODES, gpus=GPUS):
    """`roll train ...` whose configuration `roll check` accepts for these machines."""
    program, name, pipeline, *arguments = command
    assert (program, name, pipeline) == ("roll", "train", "rlvr")
    assert {f"num_nodes={nodes}", f"num_gpus_per_node={gpus}", "resume_from_checkpoint=auto"} <= set(arguments)
    assert check(arguments) == 0


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Makes tools that write their arguments, one a line, to a file of their name; or run what is given instead."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    calls.mkdir()
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def make(path, text=RECORD):
        path = tools / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    make.calls = calls
    return make


@pytest.fixture
def slurm_job(stand_ins, tmp_path, monkeypatch):
    """Runs slurm.sh on the first of three nodes, where `roll` ends with the code that is given; returns the script's."""
    stand_ins("python", "#!/usr/bin/env bash\necho 10.0.0.1\n")
    stand_ins("ray", RECORD.replace('$(basename "$0")', "ray-$1"))
    stand_ins("scontrol", RECORD)
    stand_ins("squeue", '#!/usr/bin/env bash\necho "$STATE"\n')
    others = '[[ $1 != bash ]] || printf "started\\nstarted\\n"\n[[ $1 != true ]] || exit "$LOST"'
    stand_ins("srun", f'#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\n{others}\nexec "$@"\n')
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    given = {"SUBMIT_DIR": tmp_path, "JOB_NUM_NODES": NODES, "GPUS_ON_NODE": GPUS, "JOB_ID": 7, "ARRAY_TASK_ID": 5}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")

    def run(*overrides, code=0, state="RUNNING", lost=0):
        monkeypatch.setenv("STATE", state)
        monkeypatch.setenv("LOST", str(lost))
        stand_ins("roll", f"{RECORD}exit {code}\n")
        return subprocess.run([FILES / "slurm.sh", *overrides], timeout=60).returncode

    return run


def test_slurm_starts_the_run_in_the_cluster_that_it_makes(slurm_job, stand_ins):
    assert slurm_job("exp_name=seed-%a", "max_steps=7") == 0
    _, command, *options = (stand_ins.calls / "ray-start").read_text().splitlines()
    ray = Path(sys.executable).with_name("ray")
    known = subprocess.run([ray, "start", "--help"], capture_output=True, text=True, timeout=60).stdout.split()
    assert {option.partition("=")[0] for option in options} <= set(known)
    assert command == "start" and {"--head", "--port=6379", f"--num-gpus={GPUS}"} <= set(options)
    assert (stand_ins.calls / "ray-stop").exists()
    address, *run = (stand_ins.calls / "roll").read_text().splitlines()
    assert address == "RAY_ADDRESS=10.0.0.1:6379"
    assert_is_a_run(["roll", *run])
    assert run[-2:] == ["exp_name=seed-5", "max_steps=7"]


@pytest.mark.parametrize(
    ("code", "state", "lost", "again"),
    [
        (130, "RUNNING", 0, True),
        (143, "RUNNING", 0, True),
        (130, "COMPLETING", 0, False),  # scancel
        (1, "RUNNING", 1, True),
        (1, "RUNNING", 0, False),
        (3, "RUNNING", 0, False),
    ],
)
def test_slurm_begins_again_what_was_not_to_end(slurm_job, stand_ins, code, state, lost, again):
    assert slurm_job(code=code, state=state, lost=lost) == code
    called = stand_ins.calls / "scontrol"
    assert called.exists() is again
    assert not again or called.read_text().splitlines()[1:] == ["requeue", "7"]


def test_slurm_asks_for_one_task_a_node_and_is_clean():
    script = FILES / "slurm.sh"
    assert os.access(script, os.X_OK)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script.read_text(), re.MULTILINE))
    assert (asked["nodes"], asked["ntasks-per-node"], asked["gpus-per-node"]) == (str(NODES), "1", str(GPUS))
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--exclude=SC1091", script], check=True, timeout=60)


def test_kuberay_has_as_many_machines_as_the_run():
    job = yaml.safe_load((FILES / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "requirements" / "base.txt").read_text().split()
    assert cluster["authOptions"] == {"mode": "token"}
    (workers,) = cluster["workerGroupSpecs"]
    assert 1 + workers["replicas"] == NODES and workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert [container["resources"][kind]["nvidia.com/gpu"] for kind in ("limits", "requests")] == [str(GPUS)] * 2
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert_is_a_run(shlex.split(spec["entrypoint"]))


@pytest.mark.parametrize("rank", [0, 1])
def test_skypilot_starts_the_run_on_one_machine(rank, stand_ins, tmp_path, monkeypatch):
    task = yaml.safe_load((FILES / "skypilot.yaml").read_text())
    assert task["num_nodes"] == NODES and task["resources"]["accelerators"].endswith(f":{GPUS}")
    assert (task["envs"]["RAY_AUTH_MODE"], task["secrets"]) == ("token", {"RAY_AUTH_TOKEN": None})
    stand_ins("roll")
    stand_ins("../sky_templates/ray/start_cluster")
    numbers = {"NODE_RANK": rank, "NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3", "NUM_NODES": NODES, "NUM_GPUS_PER_NODE": GPUS}
    for name, value in numbers.items():
        monkeypatch.setenv(f"SKYPILOT_{name}", str(value))
    subprocess.run(["bash", "-c", task["run"]], check=True, timeout=60)
    assert (stand_ins.calls / "start_cluster").exists()
    assert (stand_ins.calls / "roll").exists() == (rank == 0)
    if rank == 0:
        address, *arguments = (stand_ins.calls / "roll").read_text().splitlines()
        assert address == "RAY_ADDRESS=10.0.0.1:6379"
        assert_is_a_run(["roll", *arguments])


def instructions(dockerfile):
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_copies_and_installs_what_is_there(dockerfile):
    lines = instructions(dockerfile)
    assert lines[0][0] == "FROM" and {word for word, _ in lines} <= {"FROM", "RUN", "WORKDIR", "COPY", "CMD"}
    sources = [source for word, rest in lines if word == "COPY" for source in rest.split()[:-1]]
    ignored, *let_through = [line for line in (ROOT / ".dockerignore").read_text().split() if "/" not in line]
    assert ignored == "*" and {f"!{source}" for source in sources} == set(let_through)
    assert all((ROOT / source).exists() for source in sources)
    needed = {"README.md", "pyproject.toml", "requirements", "roll", "examples", "setup.py"}
    assert needed <= set(sources), "what setup.py reads"
    named = {name for word, rest in lines if word == "RUN" for name in re.findall(r"requirements/[\w.-]+", rest)}
    assert named and all((ROOT / name).is_file() for name in named)
    (program, command, *_) = yaml.safe_load(next(rest for word, rest in lines if word == "CMD"))
    assert program == "roll" and command in COMMANDS
