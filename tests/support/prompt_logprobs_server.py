"""A local server that answers requests for `prompt_logprobs` as vLLM's does."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class PromptLogprobsServer:
    """Says of each request what `reply` makes of it: a status and a body; after `sleep_s`."""

    def __init__(self, model, symbols):
        self.model, self.requests, self.statuses, self.sleep_s = model, [], [], 0.0
        self.symbols, self.without = symbols, False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, {"data": [{"id": "big"}]})

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(asked)
                time.sleep(outer.sleep_s)
                status = outer.statuses.pop(0) if outer.statuses else 200
                self.answer(status, outer.completion(asked) if status == 200 else {"error": {"message": "max_logprobs is 20"}})

            def answer(self, status, body):
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def completion(self, asked):
        if self.without:
            return {"choices": [{"text": "x", "prompt_logprobs": None}]}
        tokens = asked["prompt"]
        with torch.no_grad():
            scores = self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        entries = [None]
        for token, row in zip(tokens[1:], scores, strict=False):
            best = row.topk(asked["prompt_logprobs"]).indices.tolist()
            ranks = {each: rank for rank, each in enumerate(row.argsort(descending=True).tolist(), 1)}
            entries.append(
                {
                    str(each): {"logprob": float(row[each]), "rank": ranks[each], "decoded_token": self.symbols[each]}
                    for each in [token, *best]
                }
            )
        return {"choices": [{"text": "x", "prompt_logprobs": entries}]}

    def close(self):
        self._http.shutdown()
        self._http.server_close()
