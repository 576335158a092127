"""The folder of a run as a run leaves it, without the run: for tests of what reads it."""

import gzip
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31mred\x1b[0m\u202egnirts\u202c\ud83d\u0000&amp;</textarea>"
"""What a model may write: markup, terminal escapes, marks that turn the direction of writing, half a surrogate pair."""


def lines(path: Path, rows) -> Path:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def metric(step, **more):
    row = {"step": step, "critic/score/mean": step / 100, "time/step_s": 2.0, "time/wait_for_batch_s": 1.0}
    row["time/elapsed_s"] = 3.0 * step
    return row | {"staleness/mean": 1.0, "throughput/response_tokens_per_s": 10.0} | more


def ended(group_id, step, what="trained", reason="", uid=None, **more):
    row = {"group_id": group_id, "prompt_uid": uid or f"math/0/row{group_id}", "status": what, "reason": reason, "step": step}
    return row | {"start_version": 0, "lag": 0 if what == "trained" else None} | more


def sample(step, group_id, index, reward=1.0, uid=None, **more):
    row = {"step": step, "status": "trained", "prompt": "1+1=", "response": "2!", "ground_truth": "2", "reward": reward}
    row |= {"finish_reason": "stop", "group_id": group_id, "index": index, "prompt_uid": uid or f"math/0/row{group_id}"}
    row |= {"domain": "math", "tag": "math", "versions": [[0, 1, 3, 0], [1, 2, 4, 1]], "response_ids": [5, 6]}
    return row | {"behaviour_logprobs": [-0.5, -1.0], "trainer_logprobs": [-0.5, -2.0], "advantage": 0.25} | more


def trace(folder: Path, number: int, spans) -> Path:
    """`spans`: row, name, begin and end in seconds, what is known."""
    rows = list(dict.fromkeys(row for row, *_ in spans))
    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": row}} for i, row in enumerate(rows)]
    for row, name, begin, end, args in spans:
        times = {"ts": begin * 1e6, "dur": (end - begin) * 1e6}
        events.append({"ph": "X", "name": name, "pid": 0, "tid": rows.index(row), **times, "args": args})
    path = folder / "trace" / f"trace-{number:04}.json.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def make_run(folder: Path, steps: int = 4, groups: int = 2, status: str = "finished", **config) -> Path:
    """Of each step some groups were trained and one was dropped; the first group of a step has its two rollouts written down."""
    folder.mkdir(parents=True)
    values = {"max_steps": 10, "async_generation_ratio": 1.0, "actor_train": {"training_args": {"learning_rate": 1e-4}}} | config
    (folder / "config.yaml").write_text(json.dumps(values))
    accounts = {"admitted": steps * (groups + 1), "trained": steps * groups, "buffered": 0, "in_flight": 0}
    summary = {
        "status": status,
        "reason": "",
        "steps": steps,
        "wall_s": 3.0 * steps,
        "groups": accounts | {"dropped": {"equal": steps}},
    }
    (folder / "summary.json").write_text(json.dumps(summary | {"staleness": {"bound": 1}, "idle_share": {"actor_train": 0.25}}))
    lines(folder / "metrics.jsonl", [{"step": 0, "val_correct/all/mean": 0.25}])
    for step in range(1, steps + 1):
        first = (step - 1) * (groups + 1)
        lines(folder / "metrics.jsonl", [metric(step)])
        rewards = [{"rewards": [1.0, i / groups], "tokens": 4} for i in range(groups)]
        lines(folder / "groups.jsonl", [ended(first + i, step, **rewards[i]) for i in range(groups)])
        lines(folder / "groups.jsonl", [ended(first + groups, step, "dropped", "equal")])
        lines(folder / "samples.jsonl", [sample(step, first, 0), sample(step, first, 1, reward=0.0)])
    lines(folder / "metrics.jsonl", [{"step": steps, "val_correct/all/mean": 0.75}])
    trace(
        folder, 1, [("actor_train", "busy", 1.0, 3.0, {}), ("actor_train", "waiting for input", 3.0, 4.0, {"reason": "3 of 8"})]
    )
    return folder


def loads_of_an_engine(summary: dict[str, Any], model: Path | str, engines: int) -> float:
    """The mean over the engines of a run, from the bytes that they took. The number of updates does not say it: engines that
    take turns make two of what is one if they load together."""
    of_a_load = sum(tensor.nbytes for tensor in load_file(Path(model) / "model.safetensors").values())
    return float(summary["weight_updates"]["bytes"]) / of_a_load / engines
