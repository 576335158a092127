"""Every command that README and the documentation print is started in a reader's folder, and ends well.

A new one needs nothing here if it ends by itself, and soon. LIMITS names all others, with the reason why they are not started
here, or not to their end.
"""

import re
import shlex
from dataclasses import replace
from typing import NamedTuple

import pytest
from made_models import of_all_processes
from printed import ROOT, Command, commands
from reader import UnknownProgram, Until, make_checkout, quick_lakes, type_

NOT = "by no test"
CLI, RECIPES = "tests/cli/", "tests/cli/test_recipes.py::"


class Limit(NamedTuple):
    pattern: str
    reason: str
    started: Until | str
    """How far it is started here, or the test that starts it, or NOT."""


AGAIN = "tests/simulate/test_faults.py::test_a_schedule_that_breaks_a_promise_is_run_again_alone_and_opens_in_the_debugger"
LIMITS = [  # the first whose pattern is found in a command counts
    Limit(r"^(git clone|source|pip install|\S*uv) |^make (env|env-core|env-sglang|bench-env)$", "makes an environment", NOT),
    Limit(r"^roll (train .*pretrain=/models/SmolLM2|env check their_lake)", "needs a clone of ROLL, and minutes", NOT),
    Limit(
        r"^make (test|test-quick|test-faults|test-hosts|test-real|test-agents|lint)$",
        "the tests, and what stands beside them",
        NOT,
    ),
    Limit(r"^(ROLL_SCHEDULES=\d+ )?pytest -n 0 tests/simulate/", "the tests, for minutes", NOT),
    Limit(r"^python tests/simulate/again", "a schedule that broke a promise", AGAIN),
    Limit(
        r"^make (demo-real|smollm2)",
        "fetches a model and trains it for ten minutes",
        RECIPES + "test_the_demo_of_a_real_model_shows_its_answers_before_and_after",
    ),
    Limit(r"^make test-envs$", "fetches packages of environments", NOT),
    Limit(r"^make test-trackers$", "fetches the trackers' packages", NOT),
    Limit(
        r"^roll top (sqlite|postgresql)",
        "needs a database with a run",
        CLI + "test_top.py::test_a_database_is_a_row_without_the_folder_of_its_run",
    ),
    Limit(
        r"^roll env .*(reasoning-gym|my-games)",
        "needs the package",
        "tests/envs/test_packages.py::test_the_audit_is_held_there",
    ),
    Limit(r"^python tests/agents_real/", "needs the programs' packages, and minutes", NOT),
    Limit(r"^make bench-gate", "takes minutes and a quiet machine", NOT),
    Limit(
        r"--config_name rlvr_distillation",
        "needs the model that make demo has trained",
        "tests/integration/test_teachers.py::test_a_student_learns_the_task_of_its_teacher_without_rewards",
    ),
    Limit(r"^make clean$", "removes what the tests run in", NOT),
    Limit(r"^make test-gpu( |$)", "needs a GPU", NOT),
    Limit(r"^make docs$", "takes 10 s", "tests/docs/test_site.py::test_no_page_fetches_anything_from_elsewhere"),
    Limit(
        r"^pip wheel ", "takes 30 s", "tests/packaging/test_wheel.py::test_the_wheel_has_every_module_and_what_the_commands_read"
    ),
    Limit(
        r"^export RAY_AUTH_MODE=",
        "sets a variable of the shell",
        "tests/hosts/test_start.py::test_the_printed_commands_start_a_run",
    ),
    Limit(
        r"^(ROLL_\w+=\S+ )*sbatch ",
        "needs a cluster",
        "tests/packaging/test_cluster_files.py::test_slurm_starts_the_run_in_the_cluster_that_it_makes",
    ),
    Limit(
        r"^(ray|RAY_ADDRESS=\S+) ",
        "needs machines",
        "tests/faults/matrix/test_nodes.py::test_ranks_of_a_trainer_on_two_nodes_meet",
    ),
    Limit(r"^ssh ", "needs another machine", NOT),
    Limit(r"^roll ui ", "serves until Ctrl-C", CLI + "test_look.py::test_ui_prints_an_address_that_answers_and_ends_at_ctrl_c"),
    Limit(
        r"^roll env audit .*(--prompts|--config_name)",
        "needs a reward and prompts, or a run",
        "tests/envs/test_audit.py::test_a_run_is_audited_by_its_tags",
    ),
    Limit(r"^roll doctor$", "starts torch and Ray anew", CLI + "test_doctor.py::test_a_line_a_finding_with_state_and_fix"),
    Limit(
        r"^roll (replay|explain) ",
        "needs a recorded run",
        "tests/integration/test_replay_command.py::test_the_command_says_that_all_weights_are_equal",
    ),
    Limit(
        r"^roll simulate ",
        "needs a run, or a table of costs",
        CLI + "test_simulate.py::test_a_run_that_it_kept_is_one_that_it_can_be_calibrated_by",
    ),
    Limit(r"^eval ", "is for a shell", CLI + "test_completion.py::test_bash_completes_with_it"),
    Limit(
        r"^roll eval |mode=bench",
        "needs a run's checkpoints",
        "tests/integration/test_bench.py::test_the_command_takes_the_configuration_of_the_checkpoints_run",
    ),
    Limit(
        r"^roll export --checkpoint best ",
        "needs a run that keeps its best checkpoint",
        "tests/integration/test_keep_best.py::test_best_is_evaluated_and_exported_by_name",
    ),
    Limit(
        r"^roll show \S+ groups",
        "needs a run's database",
        CLI + "test_groups.py::test_groups_are_listed_and_exported_with_their_samples",
    ),
    Limit(
        r" DIR --config_name (trainer|explorer)$",
        "needs Trinity-RFT's files",
        RECIPES + "test_trinitys_three_files_run_as_they_are_printed_in_any_order",
    ),
    Limit(
        r"--config_path \.\.\. ",
        "needs a file of ROLL",
        CLI + "test_check.py::test_a_file_of_rolls_shows_its_loss_with_the_numbers_in_force_and_what_means_something_else",
    ),
    Limit(
        r"^roll train rlvr --config_path \. --config_name my_run$",
        "trains what roll init made",
        CLI + "test_start_anew.py::test_what_init_makes_is_checked_and_trained_as_it_is",
    ),
    Limit(r"^roll train agentic .*--config_name embedded ", "trains for a minute", RECIPES + "test_an_agent_calls_its_tool"),
    Limit(r"^roll train rlvr --config_path \S+qwen2.5-gsm8k .* --local ", "trains", RECIPES + "test_gsm8k_as_it_is_distributed"),
    Limit(
        r"explorer_trainer\.py$",
        "three processes that train",
        RECIPES + "test_the_demo_of_explorers_and_a_trainer_ends_with_what_the_run_promises",
    ),
    Limit(r" -m \w", "trains six runs", CLI + "test_sweep.py::test_a_sweep_trains_each_run_and_ends_with_a_table"),
    Limit(r"rlvr_shapes$", "needs what make_shapes.py makes", Until.CHECK),
    Limit(r"rlvr_domains_async$|cache_mixture", "needs what make_domains.py, make_mixture.py make in minutes", Until.CHECK),
    Limit(r"^bash \S+/run\.sh|--config_path examples/(async_gsm8k|qwen2\.5-gsm8k) --config_name \w+$", "needs GPUs", Until.CHECK),
    Limit(r"^roll data RUN", "needs a run", "tests/integration/test_raft.py::test_the_kept_responses_of_a_run_are_rows_for_sft"),
    Limit(r"^(\w+=\S+ )?(python examples/start_|roll train |roll demo\b)", "trains for minutes", Until.FIRST_WORKER),
    Limit(r"^(\S+/)?python (benchmarks/|\S*make_\w+\.py)", "measures or teaches for minutes", Until.OPTIONS),
]
ADVICE = "mend the page or the command; if it cannot be started here, say so in LIMITS, with the reason"


def limit_of(command: Command) -> Limit | None:
    return next((limit for limit in LIMITS if re.search(limit.pattern, command.line)), None)


def with_recipes(command: Command) -> list[Command]:
    """In the place of `make`, the lines of the Makefile."""
    words = shlex.split(command.line.removeprefix("UV_TORCH_BACKEND=cpu "))
    if words[0] != "make" or limit_of(command):
        return [command]
    recipe = re.search(rf"^{words[1]}:.*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe, f"{command.page}: `{command.line}`: the Makefile has no such target"
    arguments = words[2].removeprefix("ARGS=") if words[2:] else ""
    lines = recipe[1].replace("$(BIN)/", "").replace("$(ARGS)", arguments).splitlines()
    return [replace(command, line=line.strip()) for line in lines]


PRINTED = [line for command in commands() for line in with_recipes(command)]
HERE = [command for command in PRINTED if (limit := limit_of(command)) is None or isinstance(limit.started, Until)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, embedded_task):
    lakes = quick_lakes(of_all_processes(tmp_path_factory) / "embedded" / "cache_frozen_lake")
    return make_checkout(tmp_path_factory.mktemp("reader"), embedded_task, lakes)


def typed(command: Command, checkout, capsys) -> str:
    limit = limit_of(command)
    try:
        code = type_(command, checkout, limit.started if limit and isinstance(limit.started, Until) else None)
    except UnknownProgram as program:
        pytest.fail(f"{command.page}: `{command.line}`: {program} is not started here: {ADVICE}")
    told = capsys.readouterr()
    assert code == 0, f"{command.page}: `{command.line}` ends with {code}: {ADVICE}\n{told.out}{told.err}"
    return told.out


def without_times(text: str) -> str:
    return " ".join(re.sub(r"[\d.]+ ms", "… ms", text).split())


@pytest.mark.parametrize("command", HERE, ids=lambda command: f"{command.page}: {command.line[:60]}")
def test_a_printed_command_works(command, checkout, capsys):
    told = typed(command, checkout, capsys)
    for line in command.shown:
        assert line == "..." or without_times(line) in without_times(told), f"{command.page}: `{command.line}` prints\n{told}"


def test_every_limit_is_that_of_a_command_and_names_a_test_that_exists():
    assert not {*LIMITS} - {limit_of(command) for command in PRINTED}, "no command is printed to which this applies"
    for limit in LIMITS:
        if limit.started is not NOT and isinstance(limit.started, str):
            file, name = limit.started.split("::")
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"there is no test {limit.started}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("frobnicate --all", "frobnicate"),
        ("roll chek", "ends with 2"),
        ("roll check actor_tran.pg_variant=ppo", "actor_tran"),
        ("python examples/start_rlvr_pipeline.py --local rollout_batch_size=31", "not a multiple"),
        ("python benchmarks/overlap.py --stepz 12", "ends with 2"),
        ("roll demo --version", "ends with 2"),
    ],
)
def test_a_command_that_does_not_work_is_found(line, told, checkout, capsys):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=told):
        typed(Command("a page", line), checkout, capsys)
