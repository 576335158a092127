"""SFT and DPO on every back end with two gloo processes, against one plain process of FSDP2: the loss and the length of the
gradient to 1e-5, and after AdamW's steps the log-probs to 1e-3 (it divides small gradients by themselves)."""

import json
import runpy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rows_world import SYMBOLS, config, make_world, tokenizer
from safetensors.torch import save_file
from tiny_models import tiny_qwen2
from train_specs import fsdp2_spec

from roll.core.data.sample import SampleGroup
from roll.core.trainer.batch import token_batch
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.rows_config import DPOConfig
from roll.platform.local_backend import LocalBackend
from roll.platform.ports import free_port
from roll.prepare.rows_run import RowsRun, prepare
from roll.topologies.rows.from_rows import complete

FILE = Path(__file__).with_name("rows_program.py")
PROGRAM = SimpleNamespace(**runpy.run_path(str(FILE)))
KINDS, LAYOUTS = PROGRAM.KINDS, PROGRAM.LAYOUTS
PAIRS = {"dpo": {"beta": 0.5}, "reference": {"device_mapping": "0"}}
NAMES = ("actor/pg_loss", "actor_train/grad_norm")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Heads that two ranks can divide."""
    folder = tmp_path_factory.mktemp("rows_model")
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2}
    tiny_qwen2(len(SYMBOLS), **sizes, pad_token_id=0, eos_token_id=4).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def batches(model, tmp_path_factory):
    """A folder of batches whose tokens have their weights; those of pairs by another reference than the policy."""
    world, folder = make_world(tmp_path_factory.mktemp("rows")), tmp_path_factory.mktemp("batches")
    for kind in KINDS:
        changes = PAIRS if kind == "sigmoid" else {}
        made = config(world, tmp_path_factory.mktemp("out"), pretrain=str(model), **changes)
        prepared = prepare(made, LocalBackend().devices(1, None), one_process=True)
        groups = [complete(SampleGroup(i, 0, prepared.source.next())) for i in range(11)]
        batch = token_batch(groups, 1.0)
        if isinstance(made, DPOConfig):
            own, other = (scored(folder, batch) for folder in (model, world / "other"))
            batch = batch.with_(proximal_logprobs=own, reference_logprobs=other)
        ready, _ = RowsRun.advantages(made)(batch, groups)
        names = ("lengths", "tokens", "loss_mask", "advantages")
        save_file({name: getattr(ready, name).contiguous() for name in names}, folder / f"{kind}.safetensors")
    return folder


def scored(folder, batch):
    return make_train_strategy(RankContext(), fsdp2_spec(folder, dtype="fp32")).log_probs(batch)


@pytest.fixture(scope="module")
def runs(programs, model, batches, tmp_path_factory):
    """Layout -> what each of its ranks found."""
    folder, ports = tmp_path_factory.mktemp("ranks"), [free_port() for _ in LAYOUTS]
    programs.run(FILE, *((model, batches, folder, rank, *ports) for rank in range(2)))
    return {layout: [json.loads((folder / f"{layout}-{rank}.json").read_text()) for rank in range(2)] for layout in LAYOUTS}


@pytest.fixture(scope="module")
def alone(model, batches):
    """By name of the plain layout."""
    given = [PROGRAM.read(batches / f"{kind}.safetensors") for kind in KINDS]
    return {
        layout: PROGRAM.trained(layout, model, given, RankContext(master_port=free_port())) for layout in ("fsdp2", "fsdp2-lora")
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_pairs_have_one_gradient_on_every_back_end(layout, runs, alone):
    expected, told = alone["fsdp2-lora" if "lora" in layout else "fsdp2"]
    for metrics, _ in runs[layout]:
        for ours, wanted in zip(metrics, expected, strict=True):
            assert [ours[name] for name in NAMES] == pytest.approx([wanted[name] for name in NAMES], rel=1e-5)
    assert expected[0]["actor/pg_loss"] > 0 and expected[1]["actor_train/grad_norm"] > 0
    shares = [each for _, each in runs[layout]]
    shares = shares[:1] if "tp2" in layout else shares
    found = torch.tensor([*chain.from_iterable(each["logprobs"] for each in shares)])
    wanted = torch.tensor(told["logprobs"])
    torch.testing.assert_close(found.sort().values, wanted.sort().values, atol=1e-3, rtol=0)
