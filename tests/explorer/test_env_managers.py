"""Episodes played by a scripted policy in a scripted environment: which tokens, which mask, which versions, which end."""

import asyncio

import pytest
from agentic_worlds import Letters

from roll.chat import dialogue
from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import EnvConfig
from roll.core.data.episode import EpisodeTask, PolicyAnswer
from roll.core.data.sample import VersionSpan
from roll.core.errors import EpisodeFailed, TemplateRefusal
from roll.core.record.episode_metrics import episode_metrics
from roll.core.record.validation import SetRollouts, ValidationSet, summarise
from roll.core.workers.infer_interface import SamplingParams
from roll.envs.episode_managers import TrajEnvManager
from roll.envs.turn_managers import StepConcatEnvManager, StepEnvManager

UNSPELLABLE = 0
"""<pad>: decoding skips it, so no text brings it back."""


class Handle:
    """As `EnvHost` hands an environment out."""

    running_s = 0.25
    waiting_s = 0.5

    def __init__(self, env):
        self.env = env

    async def reset(self, seed):
        return self.env.reset(seed)

    async def step(self, text):
        self.told = [*getattr(self, "told", []), text]
        return self.env.step(text)

    async def cut_off(self):
        return self.env.cut_off() if hasattr(self.env, "cut_off") else 0.0


class Policy:
    """Answers with the scripted tokens, turn by turn, the last again and again; remembers what it was asked."""

    def __init__(self, tokenizer, answers):
        self.tokenizer = tokenizer
        self.answers = answers
        self.asked = []

    async def __call__(self, context, turn, most):
        self.asked.append((list(context), turn, most))
        ids = self.answers[min(turn, len(self.answers) - 1)][:most]
        spans = [VersionSpan(0, 1, turn), VersionSpan(1, len(ids), turn + 1)] if len(ids) > 1 else [VersionSpan(0, 1, turn)]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return PolicyAnswer(ids, [-1.0 - turn] * len(ids), spans, text, stopped=ids[-1] == self.tokenizer.eos_token_id)


def play(tokenizer, answers, *, manager=TrajEnvManager, context=200, env=None, template="none", answer_tokens=4, **config):
    config = EnvConfig(env_type="x", **{"agent_system_template": "", **config})
    made = manager(config, Dialogue(tokenizer, template), instructions="rules", context=context, answer_tokens=answer_tokens)
    policy, handle = Policy(tokenizer, answers), Handle(env or Letters())
    task = EpisodeTask(uid="train/letters/0", tag="letters", index=3, env_seed=0)
    return asyncio.run(made.play(handle, task, policy)), policy, handle


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_an_episode_is_its_tokens_as_they_were_sampled(tokenizer):
    """Answers hold a token that no text spells: it stays where it was sampled, and the environment sees the text without it."""
    t = tokenizer()
    answers = [[UNSPELLABLE, *ids(t, "a"), t.eos_token_id], [*ids(t, "h"), UNSPELLABLE], ids(t, "c")]
    (sample,), policy, handle = play(t, answers)
    assert list(sample.prompt.input_ids) == ids(t, "a=")
    assert list(sample.response_ids) == [*answers[0], *ids(t, "b="), *answers[1], *ids(t, "c="), *answers[2]]
    assert sample.policy_mask == [True] * 3 + [False] * 2 + [True] * 2 + [False] * 2 + [True]
    assert list(sample.behaviour_logprobs) == [-1.0] * 3 + [0.0] * 2 + [-2.0] * 2 + [0.0] * 2 + [-3.0]
    assert handle.told == ["a", "h", "c"]
    for turn, (context, number, _) in enumerate(policy.asked):
        whole = [*sample.prompt.input_ids, *sample.response_ids]
        assert number == turn and context == whole[: len(context)], "each turn continues the very tokens of the turns before"


@pytest.mark.parametrize("manager", [TrajEnvManager, StepEnvManager])
def test_an_episode_that_shows_nothing_has_failed(tokenizer, manager):
    class Blank(Letters):
        def reset(self, seed):
            super().reset(seed)
            return "", {}

    t = tokenizer()
    with pytest.raises(EpisodeFailed, match="empty_prompt: what is seen has no token"):
        play(t, [ids(t, "a")], env=Blank(), manager=manager)


@pytest.mark.parametrize("manager", [TrajEnvManager, StepEnvManager])
def test_a_move_of_the_one_token_that_it_may_have_is_whole(tokenizer, manager):
    t = tokenizer()
    whole, _, _ = play(t, [ids(t, "a")], manager=manager, answer_tokens=1)
    cut, _, _ = play(t, [ids(t, "a")], manager=manager, answer_tokens=2)
    assert {sample.finish_reason for sample in whole} == {"stop"} != {sample.finish_reason for sample in cut} == {"length"}


def test_version_spans_cover_the_policys_tokens_and_no_others(tokenizer):
    t = tokenizer()
    (sample,), _, _ = play(t, [[*ids(t, "ab"), t.eos_token_id], ids(t, "bc"), ids(t, "d")])
    covered = [i for start, stop, *_ in sample.versions for i in range(start, stop)]
    assert covered == [i for i, own in enumerate(sample.loss_mask) if own]
    assert [span.version for span in sample.versions] == [0, 1, 1, 2, 2]


def test_the_trajectory_tells_turns_score_and_success(tokenizer):
    t = tokenizer()
    (sample,), _, _ = play(t, [ids(t, "a"), ids(t, "a"), ids(t, "c")])
    told = sample.trajectory
    assert [(turn.observation, turn.action, turn.reward, turn.tokens) for turn in told.turns] == [
        ("a=", "a", 1.0, 1),
        ("b=", "a", 0.0, 1),
        ("c=", "c", 1.0, 1),
    ]
    assert [turn.state_key for turn in told.turns] == ["0/0", "0/1", "0/2"], "the state before each action"
    assert (told.score, told.success, told.end, told.metrics) == (2.0, False, "terminated", {"score": 2.0})
    assert (told.environment_s, told.waiting_s) == (0.25, 0.5)
    assert sample.reward == 2.0 and sample.index == 3 and sample.begins_rollout and not sample.succeeded


class Wordless(Letters):
    """Says nothing of success."""

    def step(self, action):
        *outcome, info = super().step(action)
        return *outcome, {name: value for name, value in info.items() if name != "success"}


def test_a_success_is_the_score_that_the_user_names_or_else_what_the_environment_says(tokenizer):
    t = tokenizer()
    answers = [ids(t, "a"), ids(t, "a"), ids(t, "c")]  # earns 2 of 3
    found = [play(t, answers, env=Wordless(), success_at=least)[0][0] for least in (2.0 + 1e-9, 2.1)]
    assert [sample.trajectory.success for sample in found] == [True, False]
    (unsaid,), _, _ = play(t, answers, env=Wordless())
    assert unsaid.trajectory.success is None and not unsaid.succeeded
    assert "env/letters/success" not in episode_metrics([unsaid]) and episode_metrics([unsaid])["env/letters/score"] == 2
    (cut,), _, _ = play(t, answers, env=Wordless(length=9), max_steps=2)
    assert cut.trajectory.success is False, "an episode that was cut short has not come to what would be a success"
    of = ValidationSet("validation", (), 1, SamplingParams())
    assert summarise(0, [SetRollouts(of, [_of_version(unsaid, 0)], 0)], 1.0).accuracy is None
    assert summarise(0, [SetRollouts(of, [_of_version(unsaid, 0), _of_version(found[0], 0)], 0)], 1.0).accuracy == 0.5


def _of_version(sample, version):
    sample.versions = [span._replace(version=version) for span in sample.versions]
    return sample


def test_max_steps_and_a_full_context_end_an_episode_as_truncated(tokenizer):
    t = tokenizer()
    (sample,), _, _ = play(t, [ids(t, "a")], env=Letters(length=9), max_steps=4)
    assert (sample.trajectory.end, sample.trajectory.num_turns) == ("max_steps", 4)
    (sample,), policy, _ = play(t, [ids(t, "aaaa")], env=Letters(length=9), context=15)
    assert (sample.trajectory.end, sample.trajectory.num_turns, sample.finish_reason) == ("context", 3, "length")
    assert len(sample.prompt.input_ids) + len(sample.response_ids) <= 15
    assert [most for _, _, most in policy.asked] == [4, 4, 1], "an answer gets no more than the room that is left"
    assert sample.loss_mask[-1], "no observation without an answer is kept"


def test_a_first_message_without_room_for_an_answer_is_a_failure_of_its_own(tokenizer):
    with pytest.raises(EpisodeFailed, match="2 tokens, sequence_length is 2"):
        play(tokenizer(), [[5]], context=2)


@pytest.mark.parametrize("ends_itself", [True, False])
def test_chat_messages_are_appended_as_the_template_writes_them(tokenizer, lab, ends_itself):
    """The whole context reads as the template renders the whole dialogue, whether the policy ended its answer with the template's
    own token or was cut off."""
    t = tokenizer(lab.chat_template)
    end = t.convert_tokens_to_ids("<im_end>")
    answers = [[*ids(t, letter), *([end] if ends_itself else [])] for letter in "abc"]
    (sample,), policy, _ = play(t, answers, template="native", agent_system_template="{instructions}")
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "a="}]
    for letter, shown in (("a", "b="), ("b", "c=")):
        messages += [{"role": "assistant", "content": letter}, {"role": "user", "content": shown}]
    expected = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert policy.asked[-1][0] == ids(t, expected)
    trained = [i for i, own in zip(sample.response_ids, sample.loss_mask, strict=True) if own]
    assert trained == [token for answer in answers for token in answer]


@pytest.mark.parametrize(
    ("written", "system", "turn"),
    [
        ({}, "rules", "a="),
        ({"agent_system_template": None}, "rules", "a="),
        ({"agent_system_template": ""}, None, "a="),
        ({"agent_system_template": "{instructions} 1"}, "rules 1", "a="),
        ({"agent_template": "{instructions}\n{observation}"}, None, "rules\na="),
    ],
)
@pytest.mark.parametrize("manager", [TrajEnvManager, StepEnvManager])
def test_the_rules_reach_the_policy_once_unless_a_template_says_otherwise(tokenizer, lab, manager, written, system, turn):
    t = tokenizer(lab.chat_template)
    options = {"agent_system_template": None, **written}
    _, policy, _ = play(t, [ids(t, "a")] * 3, manager=manager, template="native", **options)
    told = [{"role": "system", "content": system}] if system else []
    expected = t.apply_chat_template([*told, {"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True)
    assert policy.asked[0][0] == ids(t, expected)


def test_without_a_chat_template_the_rules_stand_on_lines_of_their_own(tokenizer):
    t = tokenizer()
    _, policy, _ = play(t, [ids(t, "a")] * 3, agent_system_template=None)
    assert policy.asked[0][0] == ids(t, "rules\na=")


def test_a_chat_template_that_is_missing_or_rewrites_answers_is_refused(tokenizer):
    with pytest.raises(ValueError, match="has no chat template"):
        Dialogue(tokenizer(), "native")
    with pytest.raises(ValueError, match="does not show an earlier answer"):
        Dialogue(tokenizer("{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"), "native")


def test_what_a_chat_template_is_given_and_what_it_writes_is_bounded(tokenizer, lab, monkeypatch):
    repeating = Dialogue(tokenizer(lab.chat_template + "{{ messages[-1]['content'] * 40 }}"), "native")
    monkeypatch.setattr(dialogue, "LONGEST_TEXT", 1000)
    assert repeating.following("a" * 10, 0)
    with pytest.raises(TemplateRefusal, match=r"writes 1,\d+ characters, more than 1,000"):
        repeating.following("a" * 30, 0)
    with pytest.raises(TemplateRefusal, match=r"is given 2,\d+ characters, more than 1,000"):
        repeating.following("a" * 2000, 0)


def test_a_step_concat_manager_shows_what_was_seen_and_nothing_else(tokenizer):
    """As ROLL's: the observations before, a line each, and behind the present one its suffix on a line of its own."""

    class Reminding(Letters):
        def _info(self, **more):
            return {**super()._info(**more), "suffix": f"t{self.turn}"}

    t = tokenizer()
    template = {"agent_template": "{history_length}{history}>{observation}", "history_length": 2}
    samples, _, _ = play(t, [ids(t, "a")], manager=StepConcatEnvManager, env=Reminding(length=4), **template)
    assert [sample.prompt.text for sample in samples] == ["0>a=\nt0", "1a=>b=\nt1", "2a=\nb=>c=\nt2", "2b=\nc=>d=\nt3"]
    assert [len(sample.trajectory.turns) for sample in samples] == [1] * 4 and {s.reward for s in samples} == {1.0}


def test_templates_know_the_turn(tokenizer):
    t = tokenizer()
    template = "{turn_idx} {step_count} {actions_left} {max_response_length} {observation}"
    _, policy, _ = play(t, [ids(t, "a")], agent_template=template, max_steps=3)
    assert t.decode(policy.asked[0][0]) == "1 0 3 4 a="
    assert t.decode(policy.asked[1][0]) == "1 0 3 4 a=a2 1 2 4 b="


def test_a_step_manager_begins_every_turn_anew_with_a_history(tokenizer):
    t = tokenizer()
    samples, policy, _ = play(
        t,
        [ids(t, "a"), ids(t, "h"), ids(t, "c")],
        manager=StepEnvManager,
        agent_template="{history_length}{history}>{observation}",
        history_length=1,
    )
    assert [context for context, _, _ in policy.asked] == [list(sample.prompt.input_ids) for sample in samples]
    assert samples[0].prompt.text == "0>a="
    assert samples[2].prompt.text == "1[Observation 2: 'b=', action 2: 'h']>c=", "history_length turns, the last ones"
    assert [list(sample.response_ids) for sample in samples] == [ids(t, "a"), ids(t, "h"), ids(t, "c")]
    assert [sample.reward for sample in samples] == [2.0] * 3
    assert [sample.begins_rollout for sample in samples] == [True, False, False]
    assert [(s.trajectory.first_turn, s.trajectory.num_turns, len(s.trajectory.turns)) for s in samples] == [
        (0, 3, 1),
        (1, 3, 1),
        (2, 3, 1),
    ]
