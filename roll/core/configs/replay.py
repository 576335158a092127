"""Keys of `mode: replay`: which recorded groups are trained again."""

from __future__ import annotations

from dataclasses import dataclass

from roll.core.configs.fields import Bounds, option


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    run: str | None = option(None, "The folder of the run that recorded them (rollout_log_per_step: all).", path="file")
    until: int | None = option(None, "The last step that is trained again; null: the last one recorded.", bounds=Bounds(ge=1))
    generate: bool = option(False, "Generates the recorded tokens again, and compares (hf_infer).")
    explain: int | None = option(None, "The step whose gradient is taken apart (`roll explain`).", bounds=Bounds(ge=1))
    filtered: bool = option(False, "Leaves out groups that this configuration's filters drop, as --change of a filter does.")
    without: list[str] = option([], "What is left out: groups (their id), samples (<group>/<index>).")
