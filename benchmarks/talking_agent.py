"""The program of program_cost.py: some questions to a model in one conversation, with the plain client of OpenAI or with
Python's own. In the end it writes down what processor time it has taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUESTIONS = ("Name an animal.", "Why that one?", "Write a line about it.")
SPENT = "spent.txt"

Answer = Callable[[list[Any]], str]


def by_openai() -> Answer:
    from openai import OpenAI

    client = OpenAI()
    return lambda messages: client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""


def by_http_client() -> Answer:
    import http.client
    import json
    from urllib.parse import urlsplit

    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(address.netloc)
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}

    def answer(messages: list[Any]) -> str:
        body = json.dumps({"model": "policy", "messages": messages})
        connection.request("POST", f"{address.path}/chat/completions", body, headers)
        return str(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])

    return answer


def main() -> None:
    answer = {"openai": by_openai, "http.client": by_http_client}[os.environ["CLIENT"]]()
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer(messages)})
    Path(SPENT).write_text(str(time.process_time()), encoding="utf-8")


if __name__ == "__main__":
    main()
