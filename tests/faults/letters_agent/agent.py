"""An agent of three turns that imports next to nothing, and kills itself in one task of nine."""

import json
import os
import signal
import urllib.request

messages = []
seed = int(os.environ["ROLL_SEED"])
for turn in range(3):
    messages.append({"role": "user", "content": f"{'abcd'[(seed + turn) % 4]}="})
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"messages": messages}).encode(),
        {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    if seed % 9 == 0 and turn == 1:
        os.kill(os.getpid(), signal.SIGKILL)
