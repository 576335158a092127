"""Teachers of rows that are no back end of the trainer's, and several teachers, each of its set."""

import json

import pytest
import torch
from other_engines import ENGINES
from prompt_logprobs_server import PromptLogprobsServer
from rows_world import SYMBOLS, config, make_world, settings, tokenizer
from tiny_models import FOR_VLLM, tiny_qwen2

from roll.core.data.sample import SampleGroup
from roll.core.trainer.batch import token_batch
from roll.platform.local_backend import LocalBackend
from roll.prepare.rows_run import prepare
from roll.prepare.training_flow import pipeline_for
from roll.strategies.model_folder import load_model
from roll.topologies.rows.from_rows import complete

DIVERGES = {"distillation": {"kd_objective": "forward_kl", "logits_topk": len(SYMBOLS)}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("rows"))


def of_folder(folder, **keys):
    return {"device_mapping": "0", "opd_kl_coef": 0.5, "model_args": {"model_name_or_path": str(folder)}} | keys


def steps(world, out, teachers, **changes):
    made = config(world, out, **DIVERGES, teachers=teachers, **{"max_steps": 2} | changes)
    assert pipeline_for(made, local=True).run()["status"] == "finished"
    rows = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "actor/total_loss" in row]


def check_same(ours, wanted):
    assert len(ours) == len(wanted) == 2
    for one, other in zip(ours, wanted, strict=True):
        assert one["teacher/token_share"] == other["teacher/token_share"] == 1
        for name in ("actor/divergence", "actor/total_loss", "actor_train/grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-3)
        assert one["actor/divergence"] > 0.1


def test_a_server_teaches_rows_as_the_same_model_on_devices(world, tmp_path):
    here = steps(world, tmp_path / "here", {"big": of_folder(world / "other")})
    server = PromptLogprobsServer(load_model(world / "other", torch.float32, "eager"), SYMBOLS)
    try:
        there = steps(world, tmp_path / "there", {"big": {"endpoint": server.url, "opd_kl_coef": 0.5}})
    finally:
        server.close()
    check_same(there, here)
    assert len(server.requests) == 1 + 2 * 8, "the trial, and each row once"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "python"), ENGINES)
def test_an_engine_teaches_rows_as_the_same_model_on_a_training_back_end(world, tmp_path, engine, python):
    tiny_qwen2(len(SYMBOLS), seed=5, pad_token_id=0, eos_token_id=4, **FOR_VLLM).save_pretrained(tmp_path / "teacher")
    tokenizer().save_pretrained(tmp_path / "teacher")
    changes = {"num_gpus_per_node": 2, "rpc_timeout": 200.0}
    here = steps(world, tmp_path / "here", {"big": of_folder(tmp_path / "teacher")}, **changes)
    served = {"strategy_name": engine, "strategy_config": {"python": python}}
    teacher = of_folder(tmp_path / "teacher", device_mapping="1", strategy_args=served)
    check_same(steps(world, tmp_path / "there", {"big": teacher}, **changes), here)


def test_each_set_has_its_teacher_and_its_share(world, tmp_path):
    """In the first step the policy is the teacher of the small set, which has nothing to say of it yet."""
    (tmp_path / "few.jsonl").write_text("".join((world / "train.jsonl").read_text().splitlines(keepends=True)[:5]))
    data = {"file_name": [str(world / "train.jsonl"), str(tmp_path / "few.jsonl")]}
    data["domain_interleave_probs"] = {"train": 3.0, "few": 1.0}
    changes = {"actor_train": settings(world, tmp_path)["actor_train"] | {"data_args": data}}
    teachers = {
        "one": of_folder(world / "other", tag_included=["train"]),
        "two": of_folder(world / "model", tag_included=["few"], opd_kl_coef=0.9),
    }
    step = steps(world, tmp_path / "run", teachers, **changes)[0]
    made = config(world, tmp_path / "again", **DIVERGES, teachers=teachers, **changes)
    source = prepare(made, LocalBackend().devices(1, None), one_process=True).source
    policy, other = (load_model(world / name, torch.float32, "eager") for name in ("model", "other"))
    shares, crossed, diverged = [], [], []
    for number in range(8):
        group = complete(SampleGroup(number, 0, source.next()))
        batch = token_batch([group], 1.0)
        own, theirs = (
            net(input_ids=batch.tokens[None]).logits[0, :-1].log_softmax(-1)[batch.loss_mask[1:]].detach()
            for net in (policy, other if group.prompt.tag == "train" else policy)
        )
        shares += [0.5 if group.prompt.tag == "train" else 0.9] * len(own)
        crossed.append(-own.gather(1, batch.tokens[batch.loss_mask][:, None])[:, 0])
        diverged.append((theirs.exp() * (theirs - own)).sum(1))
    share, losses, divergences = torch.tensor(shares), torch.cat(crossed), torch.cat(diverged)
    assert set(shares) == {0.5, 0.9}
    assert step["teacher/weight"] == pytest.approx(float(share.mean()), abs=1e-6)
    assert step["actor/divergence"] == pytest.approx(float(divergences.mean()), rel=1e-4)
    assert step["actor/total_loss"] == pytest.approx(float(((1 - share) * losses + share * divergences).mean()), rel=1e-4)
