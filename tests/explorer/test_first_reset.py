"""Each environment begins one episode before any worker starts: a slip in its code is refused, a failure of the world is not."""

import asyncio

import pytest

from roll.core.configs.problems import ConfigError
from roll.prepare.agentic_run import prepare

WORLD = """
class World:
    instructions = "Say a."
    def reset(self, seed): {reset}
    def step(self, action): return "a", 1.0, True, False, {{}}
    def close(self): pass
"""


@pytest.fixture
def prepared(lab, make_config, tmp_path, monkeypatch):
    def run(reset, module):
        (tmp_path / f"{module}.py").write_text(WORLD.format(reset=reset))
        monkeypatch.syspath_prepend(tmp_path)
        return prepare(make_config({"custom_envs.letters.env_type": f"{module}.World"}), lab.inventory)

    return run


@pytest.mark.parametrize(
    ("module", "reset", "says"),
    [
        ("one_answer", "return 'a'", "reset must return (observation, info), not str 'a'"),
        ("no_text", "return 5, {}", "the observation of reset must be text, or messages, not int 5"),
        ("no_info", "return 'a', None", "the info of reset must be a dict, not NoneType None"),
        ("misspelt", "return self.obsrvation, {}", "AttributeError: 'World' object has no attribute 'obsrvation'"),
    ],
)
def test_a_slip_is_refused_with_its_message(prepared, module, reset, says):
    with pytest.raises(ConfigError) as refused:
        prepared(reset, module)
    (problem,) = refused.value.problems
    assert problem.key == "custom_envs.letters.env_type" and says in problem.message


@pytest.mark.parametrize(
    ("module", "reset"), [("away", "raise ConnectionError('the game server is away')"), ("sound", "return 'a', {}")]
)
def test_what_may_be_otherwise_later_is_let_through(prepared, module, reset):
    assert prepared(reset, module).rules == {"letters": "Say a."}


def test_it_may_be_prepared_where_an_event_loop_runs(prepared):
    async def notebook():
        return prepared("return 'a', {}", "in_a_notebook")

    assert asyncio.run(notebook()).rules
