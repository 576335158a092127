"""Secrets are told by names, word by word; what only sounds like one stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.core.configs import redact as redact_module
from roll.core.configs.problems import ConfigError, Note, Problem
from roll.core.configs.redact import HIDDEN, hide_values, redact, redact_at, redact_text, secrets
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.prepare.compose import load
from roll.reports.trackers import describe

SECRET_KEYS = [
    *("api_key", "apiKey", "APIKey", "WANDB_API_KEY", "apikey", "x-api-key", "aws_access_key_id", "ssh_key", "private_key"),
    *("authorization", "Authorization", "auth", "auth_token", "oauth", "bearer", "Bearer", "proxy_authorization"),
    *("pwd", "db_pwd", "MYSQL_PWD", "dbpwd", "password", "passwd", "userPassword", "passphrase"),
    *("cookie", "cookies", "session_cookie", "dsn", "SENTRY_DSN", "sentry_dsn", "db_dsn", "credential", "credentials"),
    *("secret", "client_secret", "token", "tokens", "hf_token", "accessToken", "access_token", "id_token", "GH_TOKEN"),
    *("SIGNATURE", "webhook_signature", "AZURE_SAS", "sas", "PIN", "card_pin", "hf", "HF", "x_access", "X-Access-Id"),
]
INNOCENT = {
    "max_tokens": 5,
    "max_new_tokens": 64,
    "tokens_per_second": 5.5,
    "tokens_per_step": "auto",
    "max_tokens_per_microbatch_in_train": 4096,
    "kv_cache_tokens": 100,
    "num_key_value_heads": 8,
    "token_mean": 0.5,
    "stop_token_ids": [1, 2],
    "token_ids": [1, 2],
    "eos_token": "</s>",
    "answer_key": "solution",
    "prompt_key": "question",
    "response_key": "answer",
    "hint_key": "solution",
    "reward_fn_key": "data_source",
    "video_key": "videos",
    "pad_token": "<pad>",
    "tokenizer": "a/b",
    "tokenizer_name": "a/b",
    "add_token_level_kl": True,
    "author": "me",
    "authors": ["me"],
    "authority": "x",
    "authentic": "x",
    "monkey": "x",
    "keyboard": "x",
    "keys_per_second": 3,
    "hockey": "x",
    "secretary": "x",
    "bypass": "x",
    "compass": "x",
    "cooking": "x",
    "loss_agg_mode": "token-mean",
    "ids_name": "x",
    "dsnap": "x",
    "api_key": None,
    "use_auth": True,
    "pin_memory": True,
    "pinned": "x",
    "opinion": "x",
    "hf_home": "/models",
    "HF_HUB_OFFLINE": "1",
    "sassy": "x",
    "max_access": 3,
}


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_secret_names(key: str) -> None:
    value = {"outer": [{key: "sk-very-secret"}]}
    assert redact(value) == {"outer": [{key: HIDDEN}]}
    assert list(secrets(value)) == ["sk-very-secret"]
    assert "sk-very" not in str(Problem(key, "sk-very-secret", "unknown key"))
    assert "sk-very" not in str(Problem(f"a.{key}[0]", "sk-very-secret", "unknown key"))
    assert "sk-very" not in str(Note(f"a.{key}.b", "sk-very-secret", "without effect"))


@pytest.mark.parametrize("key", INNOCENT)
def test_innocent_names(key: str) -> None:
    value = {key: INNOCENT[key]}
    assert redact(value) == value and list(secrets(value)) == []
    assert HIDDEN not in str(Problem(key, INNOCENT[key], "must be something else"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/x?access_token=abc&b=1", "https://h/x?access_token=***&b=1"),
        ("https://h/x?b=1&api_key=abc", "https://h/x?b=1&api_key=***"),
        ("https://h/x?sig=abc", "https://h/x?sig=***"),
        ("https://h/x?X-Amz-Signature=abc", "https://h/x?X-Amz-Signature=***"),
        ("https://h/x?key=AIza123#top", "https://h/x?key=***#top"),
        ("https://ghp_secret@github.com/a/b", "https://***@github.com/a/b"),
        ("postgresql://me:pw@host/db", "postgresql://me:***@host/db"),
        ("WANDB_API_KEY=abc", "WANDB_API_KEY=***"),
        ("export HF_TOKEN=abc && run", "export HF_TOKEN=*** && run"),
        ("run --api-key=abc --steps=5", "run --api-key=*** --steps=5"),
        ("++tracker_kwargs.api_key='a b' x", "++tracker_kwargs.api_key=*** x"),
        ("Authorization: Basic abc", "Authorization: ***"),
        ("curl -H 'Authorization: Bearer abc' url", "curl -H 'Authorization: ***' url"),
        ("401 for Bearer abcdef123456", "401 for Bearer ***"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
    ],
)
def test_inside_texts(text: str, shown: str) -> None:
    assert redact_text(text) == shown and redact([text]) == [shown]
    assert all(secret not in shown for secret in secrets(text)) and list(secrets(text))


@pytest.mark.parametrize(
    "text",
    [
        *("max_tokens=64", "author=me", "https://host/a@b", "write key=value, +key=value or ~key", "a=b", "tokens_per_step=5"),
        *("https://h/x?max_tokens=5&page=2", "token-mean", "the bearer of news", "x = 5", "eos_token=</s>", "monkey=1"),
    ],
)
def test_innocent_texts(text: str) -> None:
    assert redact_text(text) == text and list(secrets(text)) == []


def test_lists_of_settings() -> None:
    value: dict[str, Any] = {
        "env": ["WANDB_API_KEY=abc", "STEPS=5", {"name": "DB_PASSWORD", "value": "q"}, {"name": "STEPS", "value": "5"}],
        "args": ["--token", "abc", "--max_tokens", "5", "-v"],
    }
    assert redact(value) == {
        "env": ["WANDB_API_KEY=***", "STEPS=5", {"name": "DB_PASSWORD", "value": "***"}, {"name": "STEPS", "value": "5"}],
        "args": ["--token", "***", "--max_tokens", "5", "-v"],
    }
    assert sorted(secrets(value)) == ["abc", "abc", "q"]


def test_what_is_redacted_stays_so() -> None:
    once = redact({"url": "https://a:b@h?token=c", "e": "API_KEY=abc", "api_key": "x"})
    assert redact(once) == once and "abc" not in yaml.safe_dump(once)


def test_error_lines_of_a_configuration_hide_what_the_user_wrote() -> None:
    given = {"tracker_kwargs": 5, "api_key": "sk-one", "actor_train": {"authorization": "sk-two"}, "extra": ["HF_TOKEN=sk-three"]}
    with pytest.raises(ConfigError) as caught:
        load_config(RLVRConfig, given)
    assert "sk-" not in str(caught.value) and "api_key = '***'" in str(caught.value)


def test_a_value_is_judged_by_its_whole_path() -> None:
    assert redact_at("tracker_kwargs.wandb.api_key", "x") == HIDDEN
    assert redact_at("credentials.user", "x") == HIDDEN
    assert redact_at("override", "a.api_key=abc") == "a.api_key=***"
    assert redact_at("actor_infer.generating_args.max_new_tokens", "many") == "many"


def test_messages_of_trackers_repeat_no_secret_of_a_text() -> None:
    config = {"tracking_uri": "https://me:hunter2@host", "env": ["API_KEY=abcdef"]}
    told = describe(ConnectionError("refused hunter2 and abcdef"), secrets(config))
    assert told == "ConnectionError: refused *** and ***"


@pytest.mark.parametrize("name", ["UPLOAD_SAS", "REQUEST_SIGNATURE", "SIM_PIN", "HF", "X_ACCESS", "WANDB_API_KEY"])
def test_a_secret_of_the_environment_is_hidden_under_every_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redact_module, "_known", [])
    monkeypatch.setenv(name, "sv=2022&very-secret")
    (tmp_path / "run.yaml").write_text(f"exp_name: '1${{oc.env:{name}}}'\nbeside: run-${{oc.env:{name}}}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "run")
    assert "beside = 'run-***'" in str(caught.value) and "very" not in str(caught.value)
    value = {"exp_name": "run-sv=2022&very-secret", "rest": ["sv=2022&very-secret"]}
    assert redact(value) == {"exp_name": "run-***", "rest": ["***"]}
    assert "sv=2022&very-secret" in secrets(value)


@pytest.mark.parametrize(
    ("name", "value"), [("PWD", "/gone/for/good"), ("OLDPWD", "/gone/before"), ("PIN", "math"), ("A", "long enough")]
)
def test_other_values_of_the_environment_are_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact_module, "_known", [])
    hide_values({name: value})
    assert redact_text(f"read {value}/rows") == f"read {value}/rows"
