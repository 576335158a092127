"""`roll env check frozen_lake --config size=6`: is an environment fit to train in? `roll env play`: a model plays one episode
of it, turn by turn, in the terminal. `roll env audit`: what does it, or a reward, pay for that is no answer? `roll env add` and
`list`: packages of environments in interpreters of their own. `roll env prompts`: environments of one step as prompts."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from roll.cli.options import Parser, answering, keys_and_values, table
from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.arguments import GeneratingArguments, ImageArguments
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import visible
from roll.core.data.seeding import derive_seed
from roll.core.errors import EpisodeFailed
from roll.envs.check import as_mapping, as_text, check_env
from roll.envs.elsewhere import asked
from roll.envs.elsewhere import prompts as first_prompts
from roll.envs.packages import KNOWN, folders, interpreter, offered, shorthand, stamped
from roll.envs.packages import add as install
from roll.envs.registry import BUILT_IN
from roll.plan.rules.loading import load_config
from roll.prepare.yaml_files import read_checked

if TYPE_CHECKING:
    from roll.chat.dialogue import Dialogue
    from roll.core.data.episode import AskPolicy, PolicyAnswer
    from roll.core.data.sample import Trajectory
    from roll.core.workers.infer_interface import SamplingParams
    from roll.prompts.messages import Show
    from roll.strategies.infer.hf.strategy import HFInferStrategy

USAGE = "usage: roll env check|play|audit|add|list|prompts [options]; roll env check --help, and so on, say more"
PYTHON = "interpreter that it is in, by its name (roll env list) or path (default: that of its package, else this one)"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the named command, or 2 without one."""
    action, *rest = [*arguments, ""]
    if action in ACTIONS:
        return ACTIONS[action](rest[:-1])
    asked = action in ("-h", "--help")
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


@answering
def check(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 it is fit, 1 it is not, 2 it cannot be made."""
    parser = argparse.ArgumentParser(prog="roll env check", description="Plays an environment with a random agent and an oracle.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("env", nargs="?", metavar="TYPE", help=f"{', '.join(BUILT_IN)}, package:id, or the path of a class")
    kind.add_argument("--env", dest="named_env", metavar="TYPE", help="the same")
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="env_config; values are YAML")
    parser.add_argument("--python", help=PYTHON)
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each agent (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="from which the episodes' seeds are derived (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())  # a user's own environment lies where the command is given
    if options.episodes < 1:
        raise ConfigError([Problem("--episodes", options.episodes, "must be >= 1")])
    env_type, env_config = shorthand(options.env or options.named_env, keys_and_values(options.config))
    python = interpreter(env_type, options.python)
    report = check_env(env_type, env_config, options.episodes, options.seed, python)
    print(json.dumps(as_mapping(report)) if options.json else visible(as_text(report), keep="\n\t"))
    return 0 if report.ok else 1


@answering
def play(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 played, 1 the environment failed, 2 bad input."""
    parser = Parser(prog="roll env play", description="A model plays one episode of an environment.", allow_abbrev=False)
    parser.add_argument("--env", help="environment: a built-in name or the dotted path of your own class")
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model, e.g. a checkpoint's trainer/model")
    parser.add_argument("--run", help="folder of an agentic run: plays what its config.yaml says, as --tag")
    parser.add_argument("--tag", help="which of the run's custom_envs (default: the first)")
    parser.add_argument("--seed", type=int, default=0, help="of the environment (default: 0)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    parser.add_argument("--max_steps", type=int, default=20, help="turns (default: 20; a run's own with --run)")
    parser.add_argument("--max_tokens_per_step", type=int, default=64, help="tokens of an answer (default: 64)")
    parser.add_argument("--sequence_length", type=int, default=2048, help="tokens of the episode (default: 2048)")
    parser.add_argument("--images", help="folder for the images that a model is shown, by the names in turns (default: not kept)")
    options, pairs = parser.parse_with_overrides(arguments)
    to_play = _what_to_play(vars(options), pairs)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with nullcontext(options.images) if options.images else TemporaryDirectory() as images:
        return asyncio.run(_play(to_play, options.model, options.seed, options.temperature, images))


class _ToPlay(NamedTuple):
    env: EnvConfig
    template: str
    answer_tokens: int
    context: int
    """Most tokens of the episode."""
    args: GeneratingArguments = GeneratingArguments()
    """Sampling of a run; the temperature is the command's."""
    variables: Mapping[str, object] = {}
    """Variables of the chat template."""
    images: ImageArguments | None = None
    """Image settings of a run."""


def _what_to_play(options: Mapping[str, Any], pairs: Sequence[str]) -> _ToPlay:
    """Raises `ConfigError`."""
    if options["run"]:
        path = Path(options["run"]) / "config.yaml"
        if not path.is_file():
            raise ConfigError([Problem("--run", options["run"], "has no config.yaml", "name the folder of an agentic run")])
        written = yaml.safe_load(read_checked(path, str(path)))
        if not isinstance(written, dict):
            raise ConfigError(
                [Problem("--run", options["run"], "its config.yaml is not a mapping", "name the folder of an agentic run")]
            )
        config = load_config(AgenticConfig, written)
        tag = options["tag"] or next(iter(config.custom_envs), "")
        if tag not in config.custom_envs:
            raise ConfigError(
                [Problem("--tag", tag, "is not in the run's custom_envs", f"one of {', '.join(config.custom_envs)}")]
            )
        if config.custom_envs[tag].program is not None:
            raise ConfigError([Problem("--tag", tag, "is a program, which is no environment to be played turn by turn")])
        data, args = config.actor_train.data_args, config.actor_infer.generating_args
        limits = config.answer_tokens(tag), config.lengths().sequence
        return _ToPlay(config.custom_envs[tag], data.template, *limits, args, data.chat_template_kwargs, data.images)
    if not options["env"]:
        raise ConfigError([Problem("--env", "", "is needed, or --run", "e.g. --env frozen_lake")])
    known = [item.name for item in fields(EnvConfig)]
    given: dict[str, Any] = {"max_steps": options["max_steps"], "env_config": {}}
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError([Problem("command line", pair, "cannot be read", "write key=value")])
        for key, value in keys_and_values([pair]).items():
            (given if key in known else given["env_config"])[key] = value
    given["env_type"], given["env_config"] = shorthand(options["env"], given["env_config"])
    env = load_config(EnvConfig, given)
    return _ToPlay(env, "auto", options["max_tokens_per_step"], options["sequence_length"])


async def _play(to_play: _ToPlay, model: str, seed: int, temperature: float, images: str) -> int:
    from roll.cli.one_episode import one_episode
    from roll.core.workers.infer_interface import sampling_params
    from roll.strategies.folder_tokens import folder_tokens
    from roll.strategies.infer.hf.strategy import HFInferStrategy

    env, _, answer_tokens, context, args, *_ = to_play
    tokenizer, dialogue, show = _opened(model, to_play, Path(images))
    tokens = folder_tokens(model, tokenizer)
    if args.end_ids is None and not args.stop_strings and not tokens.has_end:
        message = "nothing ends an answer: no token, by tokenizer, generation_config.json and config.json"
        raise ConfigError([Problem("--model", model, message, "eos_token_id: ID in its generation_config.json")])
    sampling = replace(sampling_params(args, answer_tokens, tokens.ends), temperature=temperature)
    engine = HFInferStrategy(model, max_running_requests=1, max_length=context, images=images if show else None)
    ask = _asked(engine, tokenizer, sampling, seed)
    try:
        limits = {"context": context, "answer_tokens": answer_tokens}
        samples = await one_episode("play", env, dialogue, ask, seed=seed, show=show, **limits)
    except EpisodeFailed as failure:
        print(f"error: {visible(str(failure))}", file=sys.stderr)
        return 1
    finally:
        await engine.close()
    episodes = [sample.trajectory for sample in samples if sample.trajectory is not None]
    print(f"{env.env_type}, seed {seed}, {model}\n\n{_shown(episodes)}")
    return 0


def _asked(engine: HFInferStrategy, tokenizer: Any, params: SamplingParams, seed: int) -> AskPolicy:
    from roll.core.data.episode import PolicyAnswer
    from roll.core.workers.infer_interface import GenerateRequest
    from roll.core.workers.response_text import without_end

    async def ask(tokens: Sequence[int], turn: int, most: int) -> PolicyAnswer:
        sampling = replace(params, max_new_tokens=most, seed=seed + turn)
        done = await engine.generate(GenerateRequest(str(turn), tuple(tokens), sampling))
        ids = without_end(done.token_ids, sampling, done.finish_reason)
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        return PolicyAnswer(done.token_ids, done.logprobs, done.versions, text, done.finish_reason == "stop")

    return ask


def _opened(model: str, to_play: _ToPlay, images: Path) -> tuple[Any, Dialogue, Show | None]:
    """Returns the model's tokenizer, its dialogue, and the store of images shown to it; None: it reads text."""
    from roll.chat.dialogue import Dialogue
    from roll.cli.one_episode import sight
    from roll.prompts.chat_template import set_variables
    from roll.strategies.model_folder import check_model_folder, open_model
    from roll.strategies.vision.families import sees

    try:
        check_model_folder(Path(model))
        seeing = sees(Path(model))
        tokenizer = open_model(model, images=seeing)
        set_variables(tokenizer, to_play.variables)
        form = to_play.template
        form = ("native" if tokenizer.chat_template else "none") if form == "auto" else form
        shown = sight(Path(model), images, tokenizer, to_play.images or ImageArguments()) if seeing else (None, None)
        return tokenizer, Dialogue(tokenizer, "native" if form == "native" else "none", sees=shown[0]), shown[1]
    except (ValueError, OSError) as error:
        fix = "a Hugging Face folder: config.json, tokenizer, *.safetensors"
        raise ConfigError([Problem("--model", model, str(error), fix)]) from error


def _shown(parts: Sequence[Trajectory]) -> str:
    from roll.envs.check import render

    return render([turn for part in parts for turn in part.turns], parts[-1].end, parts[-1].success)


@answering
def add(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 it is there, 2 it cannot be made."""
    parser = Parser(
        prog="roll env add", description="Makes an interpreter for environments whose packages want others than yours."
    )
    parser.add_argument("requirement", nargs="+", help=f"of a package: {', '.join(KNOWN)}, or any other")
    parser.add_argument("--name", help="the folder is .venv-NAME (default: that of the first package)")
    parser.add_argument("--python", help="the Python that it is made of, a version or a path (default: this one)")
    options = parser.parse_args(arguments)
    folder = install(options.requirement, options.name, options.python)
    print(f"{folder}: {', '.join(stamped(folder))}")
    return 0


@answering
def listing(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, 2 bad input."""
    parser = Parser(prog="roll env list", description="Which interpreters of environments are here, and what they offer.")
    parser.add_argument("name", nargs="?", help="one of them: the ids of its environments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    found = {folder.name.removeprefix(".venv-"): folder for folder in folders()}
    told: dict[str, Any] = {name: stamped(folder) for name, folder in found.items()}
    if options.name is not None:
        if options.name not in found:
            raise ConfigError([Problem("name", options.name, "there is none", f"roll env add {options.name}")])
        told = asked(str(found[options.name] / "bin" / "python"), offered)
    if options.json:
        print(json.dumps(told))
    elif options.name is not None:
        for package, each in told.items():
            print("\n".join([f"# {package} {each['version']} {each['why']}", *(f"{package}:{env_id}" for env_id in each["ids"])]))
    else:
        rows = [(name, ", ".join(has) or f"incomplete: roll env add {name} goes on", _types(has)) for name, has in told.items()]
        print("\n".join(table([("interpreter", "packages", "env_type"), *rows])) if rows else "none is here: roll env add NAME")
    return 0


def _types(packages: Sequence[str]) -> str:
    return ", ".join(KNOWN[name].env_type for each in packages if (name := each.partition("=")[0]) in KNOWN)


@answering
def prompts(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 they are printed, 2 bad input."""
    parser = Parser(prog="roll env prompts", description="Tasks of an environment of one step as prompts, a JSON object a line.")
    parser.add_argument("env", metavar="TYPE", help="e.g. reasoning-gym:leg_counting")
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="env_config; values are YAML")
    parser.add_argument("--python", help=PYTHON)
    parser.add_argument("--count", type=int, default=1000, help="tasks (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="from which the tasks are derived (default: 0)")
    options = parser.parse_args(arguments)
    env_type, env_config = shorthand(options.env, keys_and_values(options.config))
    seeds = [derive_seed("prompts", options.seed, i) for i in range(options.count)]
    for row in asked(interpreter(env_type, options.python), first_prompts, env_type, env_config, seeds):
        print(json.dumps(row))
    return 0


def audit(arguments: Sequence[str]) -> int:
    from roll.cli.audit import audit as audited

    return audited(arguments)


ACTIONS = {"check": check, "play": play, "audit": audit, "add": add, "list": listing, "prompts": prompts}
