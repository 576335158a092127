"""A process that is told a run's steps and tells a tracker, as a run does:  NAME KWARGS FOLDER RESUMED_STEP FIRST LAST END

END: kill, the process kills itself by SIGKILL once the tracker has taken everything; else the status of the run."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from roll.reports.trackers import Trackers

CONFIG = {"exp_name": "my_run", "actor_train": {"lr": 0.1}, "api_key": "sk-very-secret"}


def main() -> None:
    name, kwargs, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    resumed, first, last = map(int, sys.argv[4:7])
    run = Trackers([name], folder, "my_run", CONFIG, {name: kwargs}, resumed)
    run.on_run_begin(max(resumed, 0), [{"step": n, "loss": 1 / n} for n in range(1, resumed + 1)])
    for step in range(first, last + 1):
        run.on_step(step, {"loss": 1 / step, "wide/@name": float(step), "staleness/histogram": {"0": 2.0}})
        if step % 2 == 0:
            run.on_validation(step - 1, {"accuracy": step / 10})  # a validation ends while later steps train
    if sys.argv[7] == "kill":
        while not run.all[0]._jobs.empty():
            time.sleep(0.01)
        time.sleep(1.0)  # the last one is under way
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish(sys.argv[7])
    assert run.all[0].alive, "the tracker was switched off"


if __name__ == "__main__":
    main()
