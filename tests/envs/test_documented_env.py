"""The page about environments: its example works, and it has every key."""

import inspect
import re
from pathlib import Path

import pytest

from roll.envs.check import check_env
from roll.envs.registry import BUILT_IN, env_class

PAGE = (Path(__file__).parents[2] / "docs_roll" / "environments.md").read_text()


def test_the_class_on_the_page_is_fit_and_can_be_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, of_messages = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "documented_env.py").write_text(f"{source}\n{of_messages}")
    monkeypatch.syspath_prepend(str(tmp_path))
    lesson = check_env("documented_env.Lesson", {}, episodes=2)
    assert lesson.ok, lesson.errors
    report = check_env("documented_env.GuessNumber", {"largest": 3}, episodes=5)
    assert report.ok and report.agents["random"].success_share == report.agents["oracle"].mean_return == 1.0
    assert not [note for note in report.notes if "same observation" not in note]


@pytest.mark.parametrize("env_type", BUILT_IN)
def test_every_key_is_on_the_page(env_type: str) -> None:
    parameters = inspect.signature(env_class(env_type)).parameters.values()
    keys = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    missing = [key for key in keys if f"`{key}`" not in PAGE and f"`{key}:" not in PAGE]
    assert not missing
