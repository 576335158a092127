"""mini-swe-agent mends a repository: its default agent, the local environment, the model by litellm, its own `mini.yaml`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import yaml

REPOSITORY = Path("repository")
os.environ |= {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
TASK = "total() of till.py is wrong, as test_till.py shows. Mend it."

WRONG = ("one - other", "one * other", "one", "other - one")
TILL = "def total(one, other):\n    return {}\n"
TEST = 'from till import total\n\nassert total(2, 3) == 5, "wrong"\nprint("all is well")\n'


def make_repository(seed: int) -> None:
    REPOSITORY.mkdir()
    (REPOSITORY / "till.py").write_text(TILL.format(WRONG[seed % len(WRONG)]), encoding="utf-8")
    (REPOSITORY / "test_till.py").write_text(TEST, encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "begin"]):
        subprocess.run(["git", *words], cwd=REPOSITORY, check=True)


def main() -> None:
    make_repository(int(os.environ.get("ROLL_SEED", "0")))
    import minisweagent
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    text = (Path(minisweagent.__file__).parent / "config" / "mini.yaml").read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    agent = {name: value for name, value in settings["agent"].items() if name != "mode"} | {"step_limit": 6}
    model = LitellmModel(model_name=f"openai/{os.environ.get('MODEL', 'policy')}", **settings["model"])
    environment = LocalEnvironment(**settings["environment"] | {"cwd": str(REPOSITORY.resolve())})
    end = DefaultAgent(model, environment, **agent).run(TASK)
    Path("answer.txt").write_text(end["exit_status"], encoding="utf-8")


if __name__ == "__main__":
    main()
