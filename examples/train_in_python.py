"""Trains the embedded model without YAML: `python examples/train_in_python.py`, after `roll demo` has made the model."""

import json
from pathlib import Path

import roll


def digits(sample: roll.Sample) -> float:
    said, right = sample.response_text, sample.prompt.ground_truth
    return sum(a == b for a, b in zip(said, right, strict=False)) / max(len(said), len(right))


if __name__ == "__main__":
    rows = [json.loads(line) for line in Path("examples/embedded/cache/train.jsonl").read_text().splitlines()]
    model = "examples/embedded/cache/model"
    summary = roll.train(model=model, data=rows, reward=digits, learning_rate=3e-4, max_steps=20, response_length=8, local=True)
    print(summary["status"])
