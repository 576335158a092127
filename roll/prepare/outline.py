"""The flow of a run that does not run: its stages, channels and devices, of the very lists that a run is made of; and stages of
the user's own that find no place in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from roll.core.configs.derived import Derived, derive
from roll.core.configs.flow import CustomStageConfig
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.core.flow.custom_stage import CustomStage, names, singles
from roll.core.flow.flow import Flow
from roll.core.flow.stage import AnyStage
from roll.core.pipeline.clusters import device_locks
from roll.core.pipeline.run import Run
from roll.core.pipeline.stages import NO_PARTS
from roll.core.pipeline.topology import topology_of, with_custom
from roll.core.record.ledger import Ledger

VERLS_NAMES = {
    "dataloader": ("admit",),
    "rollout": ("generate", "episodes"),
    "generate": ("generate", "episodes"),
    "logp": ("log_prob",),
    "ref_logp": ("reference",),
    "train": ("train", "policy"),
    "param_update": ("publish",),
    "validation": ("validate",),
}
"""verl's name of a stage -> ours: the first that the run has. verl generates in `generate`, and `rollout` joins the results;
here one stage does both."""


def _sides(kind: type[Run], config: PPOConfig, derived: Derived, custom: Sequence[CustomStage] = ()) -> list[list[AnyStage]]:
    return with_custom(topology_of(config).stages(kind.rollouts, config, derived, NO_PARTS), custom, None)


def outline(kind: type[Run], config: PPOConfig, own: Sequence[CustomStage]) -> Flow:
    flow = Flow(Ledger(0.0), device_locks(config), time.monotonic)
    for side in _sides(kind, config, derive(config), own):
        flow.join(side)
    return flow


S = TypeVar("S", CustomStage, CustomStageConfig)


def in_words_of(kind: type[Run], config: PPOConfig, own: Sequence[S]) -> tuple[S, ...]:
    """The stages of the user's own with this run's names in the place of verl's."""
    found = _sides(kind, replace(config, mode="both"), derive(config))
    there = {name for side in found for place in side for name in names(place)} | {stage.name for stage in own if stage.after}

    def ours(name: str) -> str:
        return next((each for each in (name, *VERLS_NAMES.get(name, ())) if each in there), name)

    def said(stage: S) -> S:
        name, after = (stage.name, ours(stage.after)) if stage.after else (ours(stage.name), stage.after)
        if isinstance(stage, CustomStageConfig):
            return replace(stage, name=name, after=after)
        stage.name = stage.work.name = name
        stage.after = after
        return stage

    return tuple(map(said, own))


def misplaced(kind: type[Run], config: PPOConfig, own: Sequence[CustomStage | CustomStageConfig]) -> Iterator[Problem]:
    """Stages of a name that is taken, or after one that is not there or hands nothing on, or one that none can replace.
    Those of a side that runs in another process are looked at, too."""
    derived = derive(config)
    is_end, works, of_groups = dict[str, bool](), dict[str, None](), set[str]()
    for each in (replace(config, mode="both"), config):
        found = _sides(kind, each, derived)
        is_end |= {name: place is side[-1] for side in found for place in side for name in names(place)}
        of_groups |= {name for side in found if side[-1].name == "keep" for place in side[:-1] for name in names(place)}
        works |= dict.fromkeys(one.name for side in found for place in side for one in singles(place) if one.has_work)
    for stage in own:
        key, open_ends = f"flow.stages.{stage.name}", ", ".join(name for name, end in is_end.items() if not end)
        if stage.after is None:
            if stage.name not in works:
                message = "without `after` it does the work of the stage of this name, and there is no such work"
                yield Problem(f"{key}.name", stage.name, message, f"one of {', '.join(works)}, or give after")
            if stage.on_error != "fail":
                yield Problem(
                    f"{key}.on_error", stage.on_error, "nothing else would do the work of that stage", "fail, or give after"
                )
            continue
        if stage.name in is_end:
            yield Problem(f"{key}.name", stage.name, "there is a stage of this name", "another name")
        elif is_end.get(stage.after, True):
            message = "it ends its side and hands nothing on" if stage.after in is_end else "there is no such stage"
            yield Problem(f"{key}.after", stage.after, message, f"one of {open_ends}")
        elif stage.on_error == "drop" and stage.after not in of_groups:
            message = f"it is given no group that could be dropped, where it stands after {stage.after}"
            yield Problem(f"{key}.on_error", "drop", message, f"fail, skip, or another place: {', '.join(sorted(of_groups))}")
        is_end.setdefault(stage.name, False)
        of_groups |= {stage.name} if stage.after in of_groups else set()
