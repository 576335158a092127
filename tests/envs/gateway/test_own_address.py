"""Where the gateway listens: an address of this machine, or its own in a network that several machines share."""

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.gateway.own_address import own_address
from roll.plan.rules.program_rules import host_problems


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.0/8"])
def test_an_address_is_itself_and_a_network_has_one_of_this_machine(host):
    assert own_address(host) == "127.0.0.1"


@pytest.mark.parametrize(("host", "told"), [("198.51.100.7", "is no address of"), ("198.51.100.0/24", "it has 127.0.0.1")])
def test_a_machine_without_such_an_address_is_told_with_the_fix(host, told):
    with pytest.raises(ConfigError, match=told) as found:
        own_address(host)
    (problem,) = found.value.problems
    assert (problem.key, problem.value) == ("gateway_host", host) and "each machine has an address" in problem.fix


@pytest.mark.parametrize(
    ("host", "is_told"),
    [
        *(("10.0.0.7", False), ("10.0.0.0/24", False), ("10.0.0.7/24", False), ("fd77::/64", False)),
        *(("node", True), ("10.0.0.0/33", True), ("0.0.0.0", True), ("0.0.0.0/0", True), ("::/0", True), ("224.0.0.0/4", True)),
    ],
)
def test_what_is_no_address_that_a_program_could_reach_is_refused(host, is_told):
    assert [problem.key for problem in host_problems(host)] == ["gateway_host"] * is_told
