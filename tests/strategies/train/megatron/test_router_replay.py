"""Megatron with experts that are given, on one rank and in layouts of two: the log-probs and the step of FSDP2, whose own are
compared with single samples (`../test_router_replay.py`)."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from train_specs import fsdp2_spec, train_spec

from roll.core.workers.train_interface import RankContext
from roll.platform.ports import free_port
from roll.strategies.train.fsdp2 import FSDP2Strategy

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.xdist_group("megatron")]

PROGRAM = Path(__file__).with_name("replay_program.py")
RANKS = SimpleNamespace(**runpy.run_path(str(PROGRAM)))
CHANGED = "actor/router_replay_changed"


@pytest.fixture(scope="module")
def expected(megatron_models):
    made = {}

    def of(model):
        if model not in made:
            strategy, batch = (
                FSDP2Strategy(RankContext(), fsdp2_spec(megatron_models / model, **RANKS.OPTIONS)),
                RANKS.batch_of(model),
            )
            own = strategy.log_probs(batch.with_(routes=None))
            made[model] = *RANKS.scored_and_trained(strategy, batch, list(range(len(batch)))), own
        return made[model]

    return of


@pytest.fixture(scope="module")
def out(programs, megatron_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replayed")
    ports: set[int] = set()
    while len(ports) < len(RANKS.LAYOUTS):
        ports.add(free_port())
    programs.run(PROGRAM, *((megatron_models, folder, rank, ",".join(map(str, ports))) for rank in range(2)))
    return folder


def check(expected, tensors, logprobs, metrics, whole):
    """`whole`: the metrics are of all layers."""
    theirs, said, own = expected
    torch.testing.assert_close(logprobs, theirs["logprobs"], rtol=1e-5, atol=1e-5)
    assert (own - theirs["logprobs"]).abs().max() > 0.01
    for name, tensor in theirs.items():
        if name.startswith("trained/"):
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-4 * float(tensor.abs().max()), msg=name)
    assert metrics["actor_train/grad_norm"] == pytest.approx(said["actor_train/grad_norm"], rel=1e-4)
    if whole:
        assert metrics[CHANGED] == pytest.approx(said[CHANGED], abs=0.05)


@pytest.mark.parametrize("options", [{}, RANKS.FULL], ids=["plain", "recompute"])
@pytest.mark.parametrize("model", ["qwen3_moe", "qwen2_moe"])
def test_one_rank(megatron_models, expected, model, options):
    from roll.strategies.train.megatron.strategy import MegatronStrategy

    batch = RANKS.batch_of(model)
    strategy = MegatronStrategy(RankContext(), train_spec("megatron_train", megatron_models / model, **RANKS.OPTIONS, **options))
    tensors, metrics = RANKS.scored_and_trained(strategy, batch, list(range(len(batch))))
    own = strategy.log_probs(batch.with_(routes=None))
    strategy.close()
    check(expected(model), tensors, tensors["logprobs"], metrics, whole=True)
    assert (own - tensors["logprobs"]).abs().max() > 0.01, "what was replayed before is not replayed any more"


@pytest.mark.parametrize("layout", RANKS.LAYOUTS)
def test_two_ranks(out, expected, layout):
    model, _ = RANKS.LAYOUTS[layout]
    by_rank = [load_file(out / f"{layout}-{rank}.safetensors") for rank in range(2)]
    tensors = by_rank[0] | by_rank[1]
    logprobs = by_rank[0]["logprobs"]
    if layout == "ep2":
        lengths = RANKS.batch_of(model).lengths.tolist()
        samples = {}
        for share, of_rank in zip(RANKS.SHARES, by_rank, strict=True):
            samples |= dict(zip(share, of_rank["logprobs"].split([lengths[i] for i in share]), strict=True))
        logprobs = torch.cat([samples[i] for i in range(len(lengths))])
    metrics = json.loads((out / f"{layout}-1.json").read_text())
    check(expected(model), tensors, logprobs, metrics, whole=False)
