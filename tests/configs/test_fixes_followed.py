"""A fix is followed by a program, as it is written, until nothing is wrong any more: the one for this cause, not for another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from roll.configs.fields import walk
from roll.configs.problems import ConfigError, Problem
from roll.configs.rlvr import RLVRConfig
from roll.configs.validation import check_config
from roll.distributed.machine import Machine
from roll.loading.check import planned_devices
from roll.loading.compose import load

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = 4
MACHINE = Machine(cpus=2, memory=1 << 34, accelerators=())
KNOWN = {path for path, _, _ in walk(RLVRConfig)}


def problems(config: str, overrides: list[str]) -> list[Problem]:
    folder, _, name = config.partition("/")
    try:
        loaded, report = load(EXAMPLES / folder, name, overrides)
    except ConfigError as error:
        return error.problems
    return report.located(check_config(loaded, planned_devices(loaded, MACHINE)))


def followed(problem: Problem) -> str | None:
    """The override that the fix asks for; None: it leaves more to the reader than a program knows."""
    fix = problem.fix
    if meant := re.match(r"did you mean ([\w.]+)\?", fix):
        if problem.message != "unknown key":
            return f"++{problem.key}={meant[1]}"
        block = problem.key.rpartition(".")[0]
        return f"++{f'{block}.' * bool(block)}{meant[1]}={problem.value}"
    if fix.startswith("it belongs to "):
        places = fix.removeprefix("it belongs to ").split(" or ")
        place = next((each for each in places if "actor_train" in each), places[0])
        value = json.dumps(problem.value).replace('"', "")
        return f"++{place}={value}"
    # A key that this project has, with its value: alone, by its last part, or beside others.
    for name, said, number in re.findall(r"([a-z_][\w.]*)(?:: (\[[^\]]*\]|[\w.-]*\w)| (?=\d)([\d.]*\d))", fix):
        path = [each for each in KNOWN if each == name or (each.endswith(f".{name}") and each.count(".") == 2)]
        if path:
            own = [each for each in path if each.startswith(problem.key.split(".")[0])] or [
                each for each in path if "actor_train" in each
            ]
            return f"++{(own or path)[0]}={said or number}"
    if bare := re.match(
        r"(?:e\.g\. |at most |write |a \w+ > 0, e\.g\. )?(-?[\d.]*\d|auto|true|false|null|[a-z_]+(?:,[a-z_]+)+)(?:,|;|$)", fix
    ):
        text = repr(bare[1]) if "," in bare[1] else bare[1]
        return f"++{problem.key}={text}"
    return None


EMBEDDED = "config/rlvr_config_async"


@pytest.mark.parametrize(
    ("config", "broken"),
    [
        (EMBEDDED, "+max_stepz=1"),
        (EMBEDDED, "+actor_train.training_args.learnin_rate=0.1"),
        (EMBEDDED, "+learning_rate=0.1"),
        (EMBEDDED, "+lora_rank=4"),
        (EMBEDDED, "+domain_interleave_probs={arithmetic: 1}"),
        (EMBEDDED, "+callbacks=[a.b]"),
        (EMBEDDED, "rollout_batch_size=31"),
        (EMBEDDED, "num_return_sequences_in_group=1"),
        (EMBEDDED, "num_return_sequences_in_group=3"),
        (EMBEDDED, "+actor_train.training_args.gradient_accumulation_steps=3"),
        (EMBEDDED, "actor_infer.device_mapping=0-5"),
        (EMBEDDED, "adv_estimator=grpoo"),
        (EMBEDDED, "actor_train.pg_variant=ppoo"),
        (EMBEDDED, "+weight_update_mode=interupt"),
        (EMBEDDED, "+actor_infer.generating_args.temperature=0"),
        (EMBEDDED, "track_with=tensorbord"),
        (EMBEDDED, "+weight_push_interval=4"),
        (EMBEDDED, "+async_pipeline_depth=5"),
        (EMBEDDED, "+max_reuse=4"),
        (EMBEDDED, "+actor_train.model_args.lora_rank=4"),
        (EMBEDDED, "+actor_train.model_args.lora_target=[q_proj, v_proj]"),
        (EMBEDDED, "+actor_train.model_args.lora_target=[]"),
        (EMBEDDED, "actor_train.data_args.template=nativ"),
        (EMBEDDED, "actor_infer.strategy_args.strategy_name=hf_infr"),
        (EMBEDDED, "max_steps=2.0"),
        (EMBEDDED, "max_ckpt_to_keep=1.0"),
    ],
)
def test_who_follows_the_fixes_has_a_configuration_without_problems(config, broken):
    overrides = [broken]
    found = problems(config, overrides)
    assert found, "nothing is wrong"
    for _ in range(ROUNDS):
        asked = next((each for each in map(followed, found) if each is not None), None)
        assert asked is not None, [str(problem) for problem in found]
        wrong = {problem.key for problem in found if problem.message.startswith("unknown key")}
        overrides = [each for each in overrides if each.lstrip("+").partition("=")[0] not in wrong] + [asked]
        found = problems(config, overrides)
        if not found:
            return
    raise AssertionError([str(problem) for problem in found])
