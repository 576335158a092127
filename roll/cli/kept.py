"""`roll data RUN --output FILE`: responses of a run as rows for `roll train sft`: the messages of the prompt and the response
behind them, or prompt and response where the run's prompts were plain texts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll.cli.options import UNREADABLE, answering, unreadable
from roll.cli.rows import number_range
from roll.core.configs.arguments import DataArguments
from roll.core.configs.redact import visible
from roll.core.data.sample import begun_answer
from roll.prompts.chat_template import conversation
from roll.prompts.prompt_file import read_rows
from roll.view.groups import GroupQuery, of_samples
from roll.view.run import RunReader
from roll.view.runs import check_run
from roll.view.samples import RolloutQuery

Row = dict[str, Any]


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if there is nothing to read or to write."""
    options = _parser().parse_args(arguments)
    try:
        rows = _unique(_rows(options.run, options))
        count = write(rows, options.output)
    except UNREADABLE as error:
        return unreadable(error, options.run, options.output)
    print(f"{count:,} responses written to {visible(str(options.output))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll data", description="The kept responses of samples.jsonl as rows to train on.")
    parser.add_argument("run", type=Path, help="the folder of an RLVR run: <output_dir>/<exp_name>")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=".parquet, else JSON Lines")
    parser.add_argument("--reward", default="1:", metavar="X|A:B", help="only with this reward, or one in this range (1:)")
    parser.add_argument(
        "--best", type=int, default=0, metavar="K", help="of each group the K of the highest rewards at most; 0: all"
    )
    parser.add_argument("--step", default="", metavar="N|A:B", help="only of this step, or of these; either end may be open")
    parser.add_argument("--domain", default="")
    return parser


def _rows(run: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Raises `OSError`, `ValueError`."""
    data = _prompts_of(run)
    reader = RunReader(run)
    check_run(run)
    reader.samples.look()
    low, high = number_range(options.step, int)
    query = GroupQuery(low, high, options.domain, "trained", kept=True)
    groups = [group for group in reader.samples.groups.values() if query.has(of_samples(group))]
    chosen = [
        pair
        for group in groups
        for pair in RolloutQuery("reward", True, options.best, *number_range(options.reward, float)).of([group])
    ]
    wanted = {group.uid.split("/", 2)[2] for group, _ in chosen}
    asked = {row.id: conversation(row) for row in read_rows(data, only_tag="") if row.id in wanted} if wanted else {}
    for group, kept in chosen:
        row, row_id = reader.samples.row(group, kept), group.uid.split("/", 2)[2]
        if row_id not in asked:
            raise ValueError(f"the prompt {row_id} is not in {data.path or ', '.join(data.files)} any more")
        facts = {"prompt_uid": group.uid, "step": group.step, "reward": kept.reward, "tag": group.domain}
        yield _trained(asked[row_id], str(row["response"]), data.template) | facts


def _prompts_of(run: Path) -> DataArguments:
    """Raises `ValueError` for a run that has no prompts. Relative paths are meant from where the run was started."""
    from roll.prepare.compose import load

    config, _ = load(run, "config")
    if config.kind != "rlvr":
        raise ValueError(f"it is a run of the {config.kind} pipeline, which has no responses to prompts")
    return config.actor_train.data_args


def _trained(asked: Sequence[Row], response: str, template: str) -> Row:
    if template == "none":
        return {"prompt": str(asked[-1]["content"]), "response": response}
    begun = begun_answer(asked)
    before = list(asked[:-1] if begun else asked)
    return {"messages": [*before, {"role": "assistant", "content": begun + response}]}


def _unique(rows: Iterator[Row]) -> Iterator[Row]:
    """Each answer to a prompt once, however often it was given."""
    seen = set[str]()
    for row in rows:
        name = json.dumps([row.get("messages"), row.get("prompt"), row.get("response")])
        if name not in seen:
            seen.add(name)
            yield row


def write(rows: Iterator[Row], path: Path) -> int:
    """Returns how many there were."""
    found = list(rows)
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        from pyarrow.parquet import write_table

        plain = [row | ({"messages": json.dumps(row["messages"])} if "messages" in row else {}) for row in found]
        write_table(pa.Table.from_pylist(plain), path)
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    return len(found)
