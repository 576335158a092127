"""Do our own graders pay for what was not earned? Ten thousand generated answers that are wrong, hedge, hide, deceive or have
only the form of what was asked, each judged as in a run: prints what earned something, by grader and kind of attack.

Mathematics: references of ten forms, others in their place in fifty LaTeX settings. Choices: three workers. Instructions:
IFEval's and open-instruct's, strict and loose. Programs: those of the tests of the sandbox in ten settings, against three kinds
of tests. The kinds are in tests/support/unearned.py; the same seed makes the same ones. It exits 1 if one of them earns.

    python benchmarks/attacks.py [--mathematics 5000] [--choices 2000] [--instructions 2500] [--programs 600] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pipeline_run import ROOT, save_results

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult, RewardWorker
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.instructions import IFEVAL, OPEN_INSTRUCT, GeneralRuleRewardWorker
from roll.graders.rules import (
    CrossThinkQARuleRewardWorker,
    GeneralValRuleRewardWorker,
    MathRuleRewardWorker,
    MultipleChoiceBoxedRuleRewardWorker,
)

sys.path.append(str(ROOT / "tests" / "support"))
from hostile_programs import answering, deceiving, forged, leaving
from unearned import Attack, choices, instructions, mathematics, programs

OF_CHOICES = (GeneralValRuleRewardWorker, MultipleChoiceBoxedRuleRewardWorker, CrossThinkQARuleRewardWorker)
WORKERS: dict[str, list[tuple[type[RewardWorker], dict[str, Any]]]] = {
    "mathematics": [(MathRuleRewardWorker, {})],
    "choices": [(each, {}) for each in OF_CHOICES],
    "instructions": [(GeneralRuleRewardWorker, {"reward_type": kind}) for kind in ("strict", "loose")],
    "programs": [(CodeSandboxRewardWorker, {"cpu_s": 1, "memory_mb": 512})],
}


def judged(cls: type[RewardWorker], arguments: Mapping[str, Any], attacks: Sequence[Attack]) -> list[RewardResult]:
    async def main() -> list[RewardResult]:
        worker = cls({"timeout_s": 6.0, "max_concurrency": 2, "reward_args": arguments})
        await worker.start()
        try:
            prompts = [Prompt(f"a/0/{i}", [1], "?", "a", "a", each.truth, each.row) for i, each in enumerate(attacks)]
            given = zip(prompts, attacks, strict=True)
            return await worker.compute_rewards(
                [Sample(prompt, 0, [2] * 400, [0.0] * 400, [], "stop", response_text=each.response) for prompt, each in given]
            )
        finally:
            await worker.close()

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {"mathematics": 5000, "choices": 2000, "instructions": 2500, "programs": 600}
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="attacks")
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())
    seed, rows, earned = options["seed"], [], 0
    cheats = [*forged(), *leaving(), *deceiving(), *answering()]
    made = {
        "mathematics": mathematics(seed),
        "choices": choices(seed),
        "instructions": instructions(seed, IFEVAL | OPEN_INSTRUCT),
        "programs": programs(seed, cheats),
    }
    print(f"{'':14}{'attacks':>8}{'kinds':>7}{'earn':>6}{'no verdict':>12}{'seconds':>9}  worker")
    for name, workers in WORKERS.items():
        attacks = list(islice(made[name], options[name]))
        for cls, arguments in workers:
            began = time.monotonic()
            results = judged(cls, arguments, attacks)
            paid = [
                (each, found) for each, found in zip(attacks, results, strict=True) if found.value is not None and found.value > 0
            ]
            failed = Counter(str(found.error) for found in results if found.value is None)
            row = [len(attacks), len({each.kind for each in attacks}), len(paid), failed.total(), time.monotonic() - began]
            print(
                f"{name:14}{row[0]:>8,}{row[1]:>7}{row[2]:>6}{row[3]:>12}{row[4]:>9.0f}  {cls.__name__} {arguments or ''}",
                flush=True,
            )
            for each, found in paid[:20]:
                print(f"  earns {found.value:g}: {each.kind}, reference {each.truth!r}: {each.response[:200]!r} {each.row or ''}")
            for why, count in failed.most_common(5):
                print(f"  {count} without a verdict: {why[:120]}")
            rows.append([name, cls.__name__, *row])
            earned += len(paid)
    save_results("attacks", {"seed": seed, "rows": rows})
    raise SystemExit(earned > 0)


if __name__ == "__main__":
    main()
