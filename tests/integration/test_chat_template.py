"""`chat_template_kwargs`: what a user sets is what the tokenizer's chat template reads, in training and in validation."""

import json
import shutil

import pytest
from tiny_models import symbol_tokenizer

import roll
from roll.chat.dialogue import Dialogue
from roll.prompts.chat_template import Renderer, set_variables
from roll.prompts.prompt_file import PromptRow

THINKS = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
)


def tokenizer(template):
    made = symbol_tokenizer(["<pad>", "<eos>", "<unk>", *"0123456789+=-"], unk_token="<unk>")
    made.chat_template = template
    return made


VALUES = [None, True, 3, 0.5, 'a "quoted" %} }} \\ é', [1, None, "x"], {"a": [False], "b": {"c": None}}]


def test_variables_arrive_as_they_are():
    made = tokenizer(f"{{{{ [{', '.join(f'x{number}' for number in range(len(VALUES)))}] | tojson }}}}")
    set_variables(made, {f"x{number}": value for number, value in enumerate(VALUES)})
    with Renderer(made, "native") as renderer:
        (text,) = renderer.texts([PromptRow("a", "t", "", "1", None, "here")])
    assert json.loads(text) == VALUES


def test_the_dialogue_of_an_agent_has_it_too():
    made = tokenizer(THINKS)
    assert made.decode(Dialogue(made, "native").first("", "1")) == "1"
    set_variables(made, {"enable_thinking": False})
    assert made.decode(Dialogue(made, "native").first("", "1")) == "1-"


def test_prompts_of_a_run_have_it_and_checkpoints_keep_the_template_of_the_model(embedded_task, tmp_path):
    model = shutil.copytree(embedded_task / "model", tmp_path / "model")
    (model / "chat_template.jinja").write_text(THINKS.replace("-", "=="))
    rows = [{"prompt": f"{n}+{n}", "ground_truth": str(2 * n)} for n in range(10, 20)]
    summary = roll.train(
        model=model,
        data=rows,
        validation=rows[:2],
        reward=len_of,
        actor_train={"data_args": {"chat_template_kwargs": {"enable_thinking": False}}},
        output_dir=str(tmp_path / "output"),
        exp_name="told",
        max_steps=1,
        rollout_batch_size=2,
        response_length=4,
        local=True,
    )
    assert summary["status"] == "finished", summary["reason"]
    samples = [json.loads(line) for line in (tmp_path / "output/told/samples.jsonl").read_text().splitlines()]
    assert samples and all(sample["prompt"].endswith("==") for sample in samples)
    (saved,) = (tmp_path / "output/told/checkpoints").glob("step-1/trainer/model/chat_template.jinja")
    assert saved.read_text() == (model / "chat_template.jinja").read_text()


def len_of(sample):
    return float(len(sample.response_ids))


@pytest.mark.parametrize(
    ("values", "template", "told"),
    [
        ({"enable_thinking": False}, "none", "is never read: template is none"),
        ({"messages": []}, "native", "is given by the run"),
        ({"a b": 1}, "native", "is no name of a variable"),
    ],
)
def test_what_no_template_could_read_is_refused(values, template, told):
    data = roll.TrainDataArguments(file_name="x.jsonl", template=template, chat_template_kwargs=values)
    config = roll.RLVRConfig(actor_train=roll.ActorTrainConfig(device_mapping=[0], data_args=data))
    with pytest.raises(roll.ConfigError, match=told):
        roll.check(config)
