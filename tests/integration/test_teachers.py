"""On-policy distillation: frozen teachers score the policy's own samples, and their log-probs become advantages."""

import json
import sys

import pytest
import torch
from mortal_workers import MortalBackend
from other_engines import SGLANG, SGLANG_MARKS, VLLM_MARKS
from prompt_logprobs_server import PromptLogprobsServer
from tiny_models import FOR_VLLM, symbol_tokenizer, tiny_qwen2
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import prepare

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
SYMBOLS = ["<pad>", "<eos>", *"0123456789+-=abcdefghijklmnopqrst"]
FAST = {"actor_train.training_args.per_device_train_batch_size": 64, "actor_train.training_args.learning_rate": 0.02}
BOTH_TAGS = {"rollout_batch_size": 8, "num_return_sequences_in_group": 2, "rollout_log_per_step": "all"}
PURE = {"adv_estimator": "on_policy_distillation", "actor_train.pg_variant": "reinforce", "rollout_log_per_step": "all"}


SERVING = [
    pytest.param("vllm", sys.executable, 0.8, marks=VLLM_MARKS),
    pytest.param("sglang", SGLANG, 1.0, marks=SGLANG_MARKS),
]
ENGINE = {"teachers.big.strategy_args.strategy_name": "vllm"}


def write_teacher(folder, seed, symbols=SYMBOLS, rows=None, **changes):
    """Larger than the policy, and of its tokenizer."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3}
    model = tiny_qwen2(rows or len(symbols), seed=seed, eos_token_id=1, pad_token_id=0, **{**sizes, **changes})
    model.save_pretrained(folder)
    symbol_tokenizer(symbols).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return [write_teacher(tmp_path_factory.mktemp(f"teacher{seed}"), seed) for seed in (3, 4)]


def taught_by(folder, name="big", device="0"):
    return {f"teachers.{name}.model_args.model_name_or_path": folder, f"teachers.{name}.device_mapping": device}


def divergence(rows, folder, temperature=1.0):
    """Mean of log p_sampler - log p_teacher over the response tokens of logged samples, by transformers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for row in rows:
        prompt = tokenizer(row["prompt"]).input_ids
        tokens = torch.tensor([prompt + row["response_ids"]])
        with torch.no_grad():
            scores = (model(tokens).logits / temperature).log_softmax(-1)[0, len(prompt) - 1 : -1]
        of_teacher = scores.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        total += float((torch.tensor(row["behaviour_logprobs"]) - of_teacher).sum())
        count += len(of_teacher)
    return total / count


def test_the_divergence_is_that_of_the_samples_and_the_policy_comes_closer(lab, make_config, folders):
    changes = PURE | taught_by(folders[0]) | {"actor_infer.generating_args.temperature": 0.8, **FAST}
    config = make_config(changes, max_steps=12, num_return_sequences_in_group=1, rollout_batch_size=64)
    run = lab.run(config)
    samples, steps = run.trained_samples(), run.steps()
    for number, step in enumerate(steps, start=1):
        of_step = [row for row in samples if row["step"] == number]
        assert step["teacher/kl"] == pytest.approx(divergence(of_step, folders[0], 0.8), abs=1e-5)
        assert (step["teacher/token_share"], step["teacher/weight"]) == (1.0, 1.0)
    assert steps[-1]["teacher/kl"] < 0.75 * steps[0]["teacher/kl"]


def lettered(number):
    """A sum, and the letter that its second number stands for."""
    return f"{number}+{number * 7 % 10}=", "abcdefghij"[number * 7 % 10]


def teach(folder, steps=120):
    """Teaches a model to answer with the letter and an end, by plain torch."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = [[*tokenizer("".join(lettered(number))).input_ids, 1] for number in range(10, 100)]
    tokens = torch.tensor(rows)
    torch.manual_seed(0)
    for _ in range(steps):
        of_step = tokens[torch.randint(len(tokens), (32,))]
        logits = model(of_step[:, :-1]).logits[:, -2:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), of_step[:, -2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def test_a_student_learns_the_task_of_its_teacher_without_rewards(lab, make_config, tmp_path):
    """The student knows the task, too, and rarely says so: its logits are a third of the teacher's."""
    teacher, student = (write_teacher(tmp_path / name, 7) for name in ("teacher", "student"))
    teach(teacher)
    model = AutoModelForCausalLM.from_pretrained(teacher)
    model.model.norm.weight.data /= 3
    model.save_pretrained(student)
    for name, numbers in (("train", range(10, 90)), ("validation", range(60, 100))):
        rows = [(str(number), *lettered(number)) for number in numbers]
        lines = [json.dumps({"id": i, "tag": "sums", "prompt": prompt, "ground_truth": letter}) for i, prompt, letter in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    exact = "roll.pipeline.rlvr.rewards.exact_match_reward_worker.ExactMatchRewardWorker"
    changes = PURE | taught_by(teacher) | FAST | {"pretrain": student, "actor_train.training_args.learning_rate": 0.005}
    changes |= {"rewards.sums": {"worker_cls": exact}, "rollout_log_per_step": 0}
    for role in ("actor_train", "validation"):
        file = tmp_path / f"{role.replace('actor_', '')}.jsonl"
        changes[f"{role}.data_args"] = {"file_name": str(file), "template": "none"}
    sizes = {
        "rollout_batch_size": 64,
        "num_return_sequences_in_group": 1,
        "max_steps": 40,
        "eval_steps": 40,
        "response_length": 4,
    }
    run = lab.run(make_config(changes, max_running_requests=64, async_generation_ratio=1, **sizes))
    first, last = (row["val_correct/sums/mean"] for row in run.rows("metrics") if "val_correct/sums/mean" in row)
    assert first < 0.5 and last > 0.9
    assert run.steps()[-1]["teacher/kl"] < 0.2 * run.steps()[0]["teacher/kl"]


def test_each_tag_has_its_teacher_and_weights_follow_their_schedules(lab, make_config, folders):
    changes = taught_by(folders[0], "odd") | taught_by(folders[1], "even") | BOTH_TAGS
    changes |= {"teachers.odd.tag_included": ["odd"], "teachers.odd.opd_kl_coef": [1.0, 0.0], "teachers.even.opd_kl_coef": 0.5}
    run = lab.run(make_config(changes, max_steps=3))
    for number, step in enumerate(run.steps(), start=1):
        rows = [row for row in run.trained_samples() if row["step"] == number]
        by_tag = [[row for row in rows if row["tag"] == tag] for tag in ("odd", "even")]
        tokens = [sum(len(row["response_ids"]) for row in of_tag) for of_tag in by_tag]
        kl = [divergence(of_tag, folder) for of_tag, folder in zip(by_tag, folders, strict=True)]
        mean = sum(each * count for each, count in zip(kl, tokens, strict=True)) / sum(tokens)
        assert step["teacher/kl"] == pytest.approx(mean, abs=1e-5)
        weight = ((3 - number) / 2 * tokens[0] + 0.5 * tokens[1]) / sum(tokens)
        assert step["teacher/weight"] == pytest.approx(weight, abs=1e-6)


def test_a_tag_without_a_teacher_learns_from_its_rewards_alone(lab, make_config, folders):
    changes = taught_by(folders[0]) | BOTH_TAGS | {"teachers.big.tag_included": ["odd"]}
    run = lab.run(make_config(changes))
    for number, step in enumerate(run.steps(), start=1):
        rows = [row for row in run.trained_samples() if row["step"] == number]
        odd = [row for row in rows if row["tag"] == "odd"]
        tokens = [sum(len(row["response_ids"]) for row in of) for of in (odd, rows)]
        assert step["teacher/token_share"] == pytest.approx(tokens[0] / tokens[1])
        assert step["teacher/kl"] == pytest.approx(divergence(odd, folders[0]), abs=1e-5)


def test_a_resumed_run_is_the_run_that_was_not_interrupted(lab, make_config, folders):
    changes = PURE | taught_by(folders[0]) | {"deterministic": True, "save_steps": 2, "teachers.big.opd_kl_coef": [1.0, 0.2]}
    whole = lab.run(make_config(changes, max_steps=4, exp_name="whole"))
    lab.run(make_config(changes, max_steps=4, exp_name="halves"))
    for folder in (whole.run_dir.parent / "halves" / "checkpoints").glob("step-4*"):
        folder.rename(folder.with_name(f"gone-{folder.name}"))
    again = lab.run_local(make_config(changes, max_steps=4, exp_name="halves", resume_from_checkpoint=True))
    assert again.summary["status"] == "finished", again.summary["reason"]
    one, other = lab.weights(whole, 4), lab.weights(again, 4)
    assert all(torch.equal(one[name], other[name]) for name in one)


FOURTH = {("teachers.big-0", "teach"): {4}}


@pytest.mark.parametrize("backend", [MortalBackend(FOURTH), MortalBackend({}, hangs=FOURTH)], ids=["dies", "hangs"])
def test_a_run_whose_teacher_was_lost_is_the_run_whose_teacher_was_not(lab, make_config, folders, backend):
    """Bit for bit: the trainer's side starts again from the newest checkpoint, when a call is overdue too."""
    changes = PURE | taught_by(folders[0]) | {"deterministic": True, "save_steps": 2, "rpc_timeout": 3.0}
    whole = lab.run(make_config(changes, max_steps=4, exp_name="whole"))
    config = make_config(changes, max_steps=4, exp_name="parts")
    parts = lab.start(config, backend)
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    lab.check_accounts(parts, config)
    assert parts.summary["trainer_resumed_from"] == [2]
    one, other = lab.weights(whole, 4), lab.weights(parts, 4)
    assert all(torch.equal(one[name], other[name]) for name in one)


def between(policy, teacher, beta):
    """The divergence of whole distributions [.., V], by the definition."""
    p, pi = teacher.exp(), policy.exp()
    if beta in (0, 1):
        one, other = (teacher, policy) if beta == 0 else (policy, teacher)
        return (one.exp() * (one - other)).sum(-1)
    mixture = (beta * p + (1 - beta) * pi).log()
    return beta * (p * (teacher - mixture)).sum(-1) + (1 - beta) * (pi * (policy - mixture)).sum(-1)


def of_models(rows, student, teacher, beta, temperature):
    """Mean divergence over the response tokens of logged samples, by transformers."""
    models = [AutoModelForCausalLM.from_pretrained(folder).double() for folder in (student, teacher)]
    tokenizer, found = AutoTokenizer.from_pretrained(teacher), []
    for row in rows:
        prompt = tokenizer(row["prompt"]).input_ids
        tokens = torch.tensor([prompt + row["response_ids"]])
        with torch.no_grad():
            sides = [(each(tokens).logits / temperature).log_softmax(-1)[0, len(prompt) - 1 : -1] for each in models]
        found.append(between(*sides, beta))
    return float(torch.cat(found).mean())


DIVERGENCES = {"forward_kl": 0.0, "reverse_kl": 1.0, "js_divergence": 0.3}


def diverging(objective, top=64):
    beta = {"distillation.kd_beta": 0.3} if objective == "js_divergence" else {}
    return {"distillation.kd_objective": objective, "distillation.logits_topk": top} | beta


@pytest.mark.parametrize("objective", DIVERGENCES)
def test_a_divergence_is_that_of_both_models_and_falls(lab, make_config, material, folders, objective):
    changes = PURE | taught_by(folders[0]) | diverging(objective) | FAST
    changes |= {"actor_infer.generating_args.temperature": 0.8, "loss_agg_mode": "token-mean"}
    config = make_config(changes, max_steps=10, num_return_sequences_in_group=1, rollout_batch_size=64)
    run = lab.run(config)
    steps = run.steps()
    first = [row for row in run.trained_samples() if row["step"] == 1]
    wanted = of_models(first, material / "model", folders[0], DIVERGENCES[objective], 0.8)
    assert steps[0]["actor/divergence"] == pytest.approx(wanted, rel=1e-4)
    assert steps[0]["teacher/kl"] == pytest.approx(divergence(first, folders[0], 0.8), abs=1e-5)
    assert steps[0]["actor/pg_loss"] == 0
    assert steps[-1]["actor/divergence"] < 0.75 * steps[0]["actor/divergence"]


def test_a_divergence_stands_beside_rewards_with_its_weight(lab, make_config, folders):
    """The step's first loss is that of the rewards, and the weighted divergence."""
    changes = taught_by(folders[0]) | diverging("forward_kl", 4) | {"teachers.big.opd_kl_coef": [0.5, 0.1]}
    changes |= {"loss_agg_mode": "token-mean", "actor_train.pg_variant": "gspo"}
    for number, step in enumerate(lab.run(make_config(changes, max_steps=3)).steps()):
        weight = 0.5 - 0.2 * number
        whole = step["actor/pg_loss"] + weight * step["actor/divergence"]
        assert step["actor/total_loss"] == pytest.approx(whole, abs=1e-6)
        assert step["teacher/weight"] == pytest.approx(weight)
    assert abs(step["actor/pg_loss"]) > 0


def test_over_kept_sets_the_teacher_is_held_to_what_was_kept(lab, make_config, folders):
    """A set has 3 tokens, and the teacher would give 8."""
    changes = PURE | taught_by(folders[0]) | diverging("forward_kl", 8) | {"actor_infer.generating_args.top_k": 3}
    run = lab.run(make_config(changes, max_steps=2))
    assert run.steps()[0]["tokens/kept_set/mean"] == 3
    assert all(0 < step["actor/divergence"] < 10 and step["teacher/token_share"] == 1 for step in run.steps())


def test_a_divergence_of_groups_that_are_trained_as_they_arrive_is_the_same(lab, make_config, folders):
    changes = PURE | taught_by(folders[0], device="2") | diverging("js_divergence", 8)
    runs = [
        lab.start(make_config(changes | each, max_steps=3, exp_name=name), LocalBackend(), THREE_SLOTS)
        for name, each in (("whole", {}), ("arrival", {"train_on_arrival": True}))
    ]
    for one, other in zip(*(run.steps() for run in runs), strict=True):
        assert one["actor/divergence"] == pytest.approx(other["actor/divergence"], rel=1e-4)
        assert one["actor_train/grad_norm"] == pytest.approx(other["actor_train/grad_norm"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "python", "temperature"), SERVING)
def test_a_teacher_that_an_engine_serves_teaches_as_the_same_model_on_a_training_back_end(
    lab, make_config, tmp_path, engine, python, temperature
):
    """One step ahead of the trainer, on devices of its own. Log-probs of the two differ by rounding."""
    folder = write_teacher(tmp_path / "teacher", 3, **FOR_VLLM | {"num_attention_heads": 2})
    changes = PURE | taught_by(folder, device="2") | {"max_steps": 3, "async_generation_ratio": 1, "rpc_timeout": 200.0}
    changes |= diverging("reverse_kl", 8) | {"actor_infer.generating_args.temperature": temperature}
    elsewhere = {"teachers.big.strategy_args": {"strategy_name": engine, "strategy_config": {"python": python}}}
    runs = [
        lab.start(make_config(changes | {"exp_name": name} | each), LocalBackend(), THREE_SLOTS)
        for name, each in (("trainers", {}), ("engines", elsewhere))
    ]
    for run in runs:
        assert run.summary["status"] == "finished", run.summary["reason"]
        first = [row for row in run.trained_samples() if row["step"] == 1]
        assert run.steps()[0]["teacher/kl"] == pytest.approx(divergence(first, folder, temperature), abs=1e-4)
        assert [step["teacher/token_share"] for step in run.steps()] == [1, 1, 1]
    one, other = (run.steps()[0] for run in runs)
    assert one["actor/divergence"] == pytest.approx(other["actor/divergence"], rel=1e-3)
    assert one["actor_train/grad_norm"] == pytest.approx(other["actor_train/grad_norm"], rel=1e-3)


@pytest.fixture
def endpoint(folders):
    server = PromptLogprobsServer(AutoModelForCausalLM.from_pretrained(folders[0]), SYMBOLS)
    yield server
    server.close()


@pytest.mark.parametrize("objective", ["policy_gradient", "reverse_kl"])
def test_a_teacher_behind_an_endpoint_teaches_as_the_same_model_on_devices(lab, make_config, folders, endpoint, objective):
    changes = PURE | (diverging(objective, 35) if objective == "reverse_kl" else {}) | {"max_steps": 3}
    runs = [
        lab.run(make_config(changes | {"exp_name": name} | each))
        for name, each in (("here", taught_by(folders[0])), ("there", {"teachers.big.endpoint": endpoint.url}))
    ]
    for one, other in zip(*(run.steps() for run in runs), strict=True):
        assert one["teacher/kl"] == pytest.approx(other["teacher/kl"], abs=1e-4)
        assert one["actor_train/grad_norm"] == pytest.approx(other["actor_train/grad_norm"], rel=1e-3)
    assert len(endpoint.requests) == 1 + 3 * 16, "the trial, and each sample once"


def test_an_endpoint_that_ceases_to_answer_ends_the_run_by_name(lab, make_config, endpoint):
    config = make_config(PURE | {"teachers.big.endpoint": endpoint.url, "rpc_timeout": 2.0}, max_steps=2)
    endpoint.statuses = [200] * 17 + [503] * 1000
    run = lab.start(config, LocalBackend())
    assert run.summary["status"] == "failed"
    assert "teachers.big" in run.summary["reason"] and "gave no answer in 2 s" in run.summary["reason"]


def with_answers(material, folder):
    """The training prompts, each with a hint: the word `answer` and a letter."""
    rows = [json.loads(line) for line in (material / "train.jsonl").read_text().splitlines()]
    file = folder / "hinted.jsonl"
    file.write_text("".join(json.dumps(row | {"hint": f"abc{i % 10}"}) + "\n" for i, row in enumerate(rows)))
    return {"actor_train.data_args": {"file_name": str(file), "template": "none"}}, {
        row["prompt"]: i % 10 for i, row in enumerate(rows)
    }


HINTED = {"teachers.self.hint_key": "hint", "teachers.self.hint_template": "{prompt}{hint}="}


def told_divergence(rows, hints, teacher):
    """Mean of log p_sampler - log p_teacher after the prompt with its hint, by transformers."""
    return divergence([row | {"prompt": f"{row['prompt']}abc{hints[row['prompt']]}="} for row in rows], teacher)


def test_a_teacher_with_a_hint_scores_the_answer_after_it(lab, make_config, material, folders, tmp_path):
    data, hints = with_answers(material, tmp_path)
    changes = PURE | taught_by(folders[0], "self") | HINTED | data
    run = lab.run(make_config(changes, max_steps=2))
    for number, step in enumerate(run.steps(), start=1):
        rows = [row for row in run.trained_samples() if row["step"] == number]
        assert step["teacher/kl"] == pytest.approx(told_divergence(rows, hints, folders[0]), abs=1e-5)


@pytest.mark.parametrize("live", [False, True], ids=["as it began", "live"])
def test_the_policy_is_its_own_teacher_with_a_hint(lab, make_config, material, tmp_path, live):
    """The first step's weights are those that it began with; later ones differ, and a teacher that is live changes with them."""
    data, hints = with_answers(material, tmp_path)
    changes = PURE | HINTED | data | {"teachers.self.live": True, "save_steps": 1}
    if not live:
        changes = PURE | HINTED | data | {"teachers.self.device_mapping": "0", "save_steps": 1}
    run = lab.run(make_config(changes, max_steps=3))
    for number, step in enumerate(run.steps(), start=1):
        rows = [row for row in run.trained_samples() if row["step"] == number]
        began = material / "model"
        newest = run.run_dir / "checkpoints" / f"step-{number - 1}" / "trainer" / "model" if live and number > 1 else began
        assert step["teacher/kl"] == pytest.approx(told_divergence(rows, hints, newest), abs=1e-4)


def test_on_devices_of_its_own_it_scores_ahead(lab, make_config, folders):
    config = make_config(PURE | taught_by(folders[0], device="2"), async_generation_ratio=1, max_steps=4)
    run = lab.start(config, LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    assert [row["teacher/token_share"] for row in run.steps()] == [1, 1, 1, 1]


def test_groups_that_are_trained_as_they_arrive_are_taught_alike(lab, make_config, folders):
    changes = PURE | taught_by(folders[0], device="2") | {"max_steps": 3}
    arrived = make_config(changes, train_on_arrival=True, exp_name="arrival")
    runs = [lab.start(each, LocalBackend(), THREE_SLOTS) for each in (make_config(changes), arrived)]
    for one, other in zip(*(run.steps() for run in runs), strict=True):
        assert one["teacher/kl"] == pytest.approx(other["teacher/kl"], abs=1e-5)
        assert one["actor_train/grad_norm"] == pytest.approx(other["actor_train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"actor_train.pg_variant": "gspo"}, "actor_train.pg_variant", "spreads advantages over a response"),
        ({"teachers.big.device_mapping": None}, "teachers.big.device_mapping", "needs devices"),
        ({"teachers.big.device_mapping": "7"}, "teachers.big.device_mapping", "no device 7"),
        ({"teachers.big.model_args.model_name_or_path": "/no/where"}, "teachers.big.model_args.model_name_or_path", "/no/where"),
        ({"teachers.big.model_args.model_name_or_path": None}, "teachers.big.model_args.model_name_or_path", "it starts from"),
        ({"teachers.big.model_args.lora_target": "all-linear"}, "teachers.big.model_args.lora_target", "without adapters"),
        ({"teachers.big.strategy_args.strategy_name": "hf_infer"}, "strategy_name", "does not fit teachers.big"),
        (
            {
                "teachers.big.strategy_args.strategy_name": "sglang",
                "teachers.big.device_mapping": "2",
                "actor_infer.generating_args.temperature": 0.7,
            },
            "teachers.big.strategy_args.strategy_name",
            "are of temperature 1, and the policy samples at 0.7",
        ),
        (ENGINE, "teachers.big.device_mapping", "actor_train would take turns with it, and it keeps its memory"),
        (
            ENGINE | {"teachers.big.device_mapping": "2", "actor_infer.generating_args.top_k": 3},
            "teachers.big.strategy_args.strategy_name",
            "of the whole vocabulary",
        ),
        (
            ENGINE | {"teachers.big.device_mapping": "2", "teachers.big.strategy_args.strategy_config": {"load_format": "dummy"}},
            "teachers.big.strategy_args.strategy_config.load_format",
            "random for ever",
        ),
        (
            ENGINE | {"teachers.big.device_mapping": "2"},
            "teachers.big.strategy_args.strategy_name",
            "supports heads of size 32, 64",
        ),
        ({"teachers.big.tag_included": ["even", "odd", "od"]}, "teachers.big.tag_included", "no prompt has this tag"),
        ({"teachers.big.tag_included": ["even"]}, "adv_estimator", "no teacher teaches the tag odd"),
        ({"teachers.big.opd_kl_coef": 0.0}, "teachers.big.opd_kl_coef", "teaches nothing"),
        ({"teachers.big.opd_kl_coef": [1.0, 0.5, 0.0]}, "teachers.big.opd_kl_coef", "is no schedule"),
        ({"teachers.big.opd_kl_coef": -1.0}, "teachers.big.opd_kl_coef", "must be >= 0"),
        ({"teachers": {}}, "adv_estimator", "there are no teachers"),
        ({"teachers.big": {"live": True}}, "teachers.big.live", "taught by itself"),
        ({"teachers.big": {"live": True, "hint_key": "id", "device_mapping": "0"}}, "teachers.big.device_mapping", "no devices"),
        ({"teachers.big": {"endpoint": "localhost:80"}}, "teachers.big.endpoint", "is no address of a server"),
        (
            {"teachers.big": {"endpoint": "http://127.0.0.1:1/v1"}, "actor_infer.generating_args.temperature": 0.7},
            "teachers.big.endpoint",
            "are of temperature 1, and the policy samples at 0.7",
        ),
        (
            {"teachers.big": {"endpoint": "http://127.0.0.1:1/v1"}, "actor_infer.generating_args.top_k": 3},
            "teachers.big.endpoint",
            "of the whole vocabulary",
        ),
        ({"teachers.big.hint_template": "{hint}{prompt}"}, "teachers.big.hint_template", "not read without hint_key"),
        (
            {"teachers.big.hint_key": "id", "teachers.big.hint_template": "{hint}"},
            "teachers.big.hint_template",
            "has no {prompt}",
        ),
        ({"teachers.big.hint_key": "solution"}, "actor_train.data_args.file_name", "line 1: the row has no 'solution'"),
        ({"distillation.kd_beta": 0.2}, "distillation.kd_beta", "not read with kd_objective: policy_gradient"),
        ({"distillation.logits_topk": 8}, "distillation.logits_topk", "not read with kd_objective: policy_gradient"),
        (
            diverging("forward_kl") | {"distillation.kd_beta": 0.2},
            "distillation.kd_beta",
            "not read with kd_objective: forward_kl",
        ),
        (diverging("js_divergence") | {"distillation.kd_beta": 1.0}, "distillation.kd_beta", "must be > 0 and < 1"),
        (
            diverging("reverse_kl") | {"teachers.big.strategy_args.strategy_name": "megatron_infer"},
            "teachers.big.strategy_args.strategy_name",
            "is of whole distributions",
        ),
        (
            diverging("reverse_kl") | {"actor_train.strategy_args.strategy_name": "megatron_train"},
            "actor_train.strategy_args.strategy_name",
            "is of whole distributions",
        ),
    ],
)
def test_what_cannot_teach_is_refused_in_one_line(make_config, folders, changes, key, told):
    with pytest.raises(ConfigError) as refused:
        prepare(make_config(PURE | taught_by(folders[0]) | changes), THREE_SLOTS)
    print(*refused.value.problems, sep="\n")
    (problem,) = refused.value.problems
    assert problem.key.endswith(key)
    assert told in str(problem)


def test_another_vocabulary_is_refused_with_the_difference(make_config, tmp_path):
    swapped, shorter = list(SYMBOLS), SYMBOLS[:-2]
    swapped[4], swapped[9] = swapped[9], swapped[4]
    write_teacher(tmp_path / "swapped", 0, swapped)
    write_teacher(tmp_path / "shorter", 0, shorter, rows=len(SYMBOLS) + 5)
    write_teacher(tmp_path / "padded", 0, rows=len(SYMBOLS) + 5)
    for name, told in (
        ("swapped", "2 tokens of 35 are another text to it: 4 is '2' there, '7' here"),
        ("shorter", "33 is 's' there, none here, of 33"),
    ):
        with pytest.raises(ConfigError) as refused:
            prepare(make_config(PURE | taught_by(str(tmp_path / name))), THREE_SLOTS)
        (problem,) = refused.value.problems
        assert told in str(problem)
    prepare(make_config(PURE | taught_by(str(tmp_path / "padded"))), THREE_SLOTS)
