"""`roll doctor --cluster` where a node falls silent in the middle of its questions: the others are told of all the same."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest

from roll.cli import doctor_cluster


class Node(NamedTuple):
    address: str

    def __str__(self):
        return self.address


class Silent(Exception): ...


class FakeRay:
    """Ray, where a question is its answer, and is never answered where that is an exception."""

    exceptions = SimpleNamespace(RayError=Silent)

    def wait(self, questions, timeout):
        done = [question for question in questions if not isinstance(question.answer, Silent)]
        return done[:1], questions[1:]

    def get(self, question, timeout):
        if isinstance(question.answer, Silent):
            raise question.answer
        return question.answer


class Question:
    def __init__(self, answer):
        self.answer = answer


def probe(**answers):
    """A node's: the answer to each question."""
    known = {"port": 1, "speed": 1e9, **answers}
    asked = {name: SimpleNamespace(remote=lambda *_, answer=answer: Question(answer)) for name, answer in known.items()}
    asked["reach"] = SimpleNamespace(remote=lambda others: Question(answers.get("reach", [""] * len(others))))
    return SimpleNamespace(**asked)


@pytest.mark.parametrize("question", ["port", "reach", "speed"])
def test_a_node_that_falls_silent_is_told_and_the_others_are_measured(question):
    nodes = [Node(f"h{i}") for i in range(3)]
    probes = dict.fromkeys(nodes, probe()) | {nodes[1]: probe(**{question: Silent("no word of it")})}
    found = {each.name: each for each in doctor_cluster._ways(FakeRay(), probes)}
    assert found["h1"].state == "missing" and "does not answer: no word of it" in found["h1"].text
    assert found["from h2"].state == "ok" and "8000 Mbit/s to h0" in found["from h2"].text


def test_of_nodes_that_are_all_silent_each_is_told_and_nothing_is_compared():
    nodes = [Node("h0"), Node("h1")]
    assert [each.name for each in doctor_cluster._ways(FakeRay(), dict.fromkeys(nodes, probe(port=Silent("no"))))] == ["h0", "h1"]
    assert list(doctor_cluster._differences({}, doctor_cluster.NodeQuestions("", "", ""))) == []
