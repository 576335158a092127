"""The errors of this project, by what they cost: raised in → caught in.

    before a worker starts     `configs/`, `plan/`, `prepare/` → `cli/options.py`           nothing; every problem is told
    a call to another process  `distributed/`, `engines/`, `weights/` → the caller, which asks again  time
    an episode                 `envs/` → `explorer/group_play.py`                             the episode, or its group
    a grade                    `graders/` → `rewards/worker.py`, `explorer/rlvr.py`           a second attempt, then the group
    a stage, or the run        any → `flow/flow.py` → `pipeline/recovery.py`                  steps since the newest checkpoint,
                                                    → `pipeline/lifecycle.py`                or the run: one line, status "failed"

The code that can do something about an error catches it; everything else ends its stage, the flow and the run. `ConfigError`
stands beside its problems in `configs/problems.py`; an error that stays in one file stands there. Foreign code (rewards,
environments, callbacks, packages, files of users and of models) may raise anything: within `boundary`, on a thread `contained`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Literal, TypeVar

T = TypeVar("T")

MOST_TOLD = 10_000
"""Characters of foreign code's errors that are told; no log is flooded."""


class Escaped(RuntimeError):
    """Foreign code raised an exception that no coroutine can pass on (StopIteration), or that would end the event loop or the
    asking process; the text names it. It costs what an `Exception` of that code would, as `boundary` says."""


def reason(error: BaseException) -> str:
    return str(error)[:MOST_TOLD] if isinstance(error, Escaped) else f"{type(error).__name__}: {str(error)[:MOST_TOLD]}"


def contained(call: Callable[..., T], *arguments: object, **named: object) -> T:
    """Calls foreign code; whatever it raises becomes an `Exception`. For threads, whose outcome a coroutine waits for."""
    try:
        return call(*arguments, **named)
    except BaseException as error:
        if _means_us(error) or (isinstance(error, Exception) and not isinstance(error, StopIteration)):
            raise
        raise Escaped(reason(error)) from error


def _means_us(error: BaseException) -> bool:
    """True for a task's cancellation, and Ctrl-C where it is an exception: foreign code may raise both, too, and nobody asked."""
    if isinstance(error, asyncio.CancelledError):
        with suppress(RuntimeError):  # no event loop here
            return (task := asyncio.current_task()) is not None and task.cancelling() > 0
    on_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def boundary(
    told: Callable[[str], Exception | None],
    what: str = "",
    ours: tuple[type[Exception], ...] = (),
    say: Callable[[BaseException], str] = reason,
) -> Iterator[None]:
    """Guards foreign code. Whatever it raises is told as "<what>: <type>: <text>", and is the cause of the error that `told`
    returns; None: the code after the block goes on. `ours` pass unchanged, as do a cancellation of the task and the user's
    Ctrl-C."""
    try:
        yield
    except ours:
        raise
    except BaseException as error:
        if _means_us(error):
            raise
        if (ends := told(f"{what}: {say(error)}" if what else say(error))) is not None:
            raise ends from error


def escapes() -> AbstractContextManager[None]:
    """As `contained`, around a coroutine's awaiting."""
    return boundary(Escaped, ours=(Exception,))


# -- before a worker starts: nothing
class Fixable(ValueError):
    """An error with a fix; otherwise as `ValueError`."""

    def __init__(self, message: str, fix: str = "") -> None:
        """`fix`: the key to change, and its new value."""
        super().__init__(message)
        self.fix = fix


class PromptFileError(Fixable):
    """Prompts that cannot be used; says file and line. `prompts/prompt_file.py` → `cli/init.py`; else a `ConfigError`."""


class Misfit(Fixable):
    """A checkpoint that is no beginning for this configuration. `record/checkpoint_fits.py` → a `ConfigError` of the run."""


class CheckpointError(ValueError):
    """No checkpoint to resume from; says why. `record/manifest.py` → `record/checkpoint.py`: the one before, or the run."""


class TrackerError(Exception):
    """A tracker that was asked for cannot start. `reports/trackers.py` → `prepare/pipeline.py`: a `ConfigError`."""


class DatabaseError(ValueError):
    """No database that can be used here. `topologies/sql/connecting.py` → `topologies/shared_groups.py`: a `ConfigError`."""


class DatabaseDamaged(DatabaseError):
    """The file is there, and is no whole database. As `DatabaseError`, with another advice."""


class ContractError(Fixable):
    """It cannot join the database's run. `topologies/sql/admittance.py` → `topologies/shared_groups.py`: a `ConfigError`."""

    def __init__(self, message: str, key: str = "", value: object = None, fix: str = "") -> None:
        """`key`: the key that would have to agree, if that is why; `fix`: advice, if there is better than the key's."""
        super().__init__(message, fix)
        self.key, self.value = key, value


# -- a call to another process: time
class WorkerDied(RuntimeError):
    """A worker's process is gone, and its work with it. `platform/ray_says.py` → `engines/rollout_client.py` (another engine
    goes on), `explorer/replaced_workers.py` (another worker takes its place), `pipeline/failures.py` (the trainer restarts)."""


class WorkerStartError(RuntimeError):
    """A worker did not come up; says which, and why. `distributed/cluster.py` → `engines/engine_fleet.py`: it is tried again."""


class NodeLost(WorkerStartError):
    """No node can take the worker. `platform/ray_nodes.py` → `engines/engine_fleet.py`: the other engines serve on."""


class BackendLost(RuntimeError):
    """No worker can be reached, and none started. `platform/ray_instance.py` → `pipeline/failures.py`: the run."""


class EngineError(RuntimeError):
    """The engine did not start, or serves no more. `strategies/infer/foreign.py` → `engines/rollout_client.py`: another does."""


class EngineClosed(EngineError):
    """The call came after `close`, or was pending. `strategies/infer/foreign.py` → `engines/rollout_client.py`: the run ends."""


class EngineSilent(EngineError):
    """No sign of life, though it may live. `engines/silent_engines.py` → `engines/engine_fleet.py`: others go on without it."""


LOST = (WorkerDied, EngineError)
"""An engine's worker or the engine in it: its requests go elsewhere, and another takes its place."""


class Aborted(Exception):
    """Given up before it entered. `strategies/infer/request_queue.py` → `strategies/infer/vllm/strategy.py`: nothing."""


class ChildDied(Exception):
    """The child process has ended; the text says how. `platform/child.py` → `envs/executors.py`, `graders/pool.py`,
    `strategies/infer/foreign.py`: the episode, the grade, the engine."""


class CallFailed(Exception):
    """The method raised an exception; the child process is sound. From and to the same places as `ChildDied`."""

    def __init__(self, types: Sequence[str], text: str) -> None:
        """`types`: names of the exception's class and of those that it derives from."""
        super().__init__(f"{types[0]}: {text}")
        self.types, self.text = types, text


class Replaced(Exception):
    """The call is lost with its worker, another is in its place. `explorer/replaced_workers.py` → `explorer/agentic.py`,
    `explorer/reward_workers.py`: asked again once, then the group."""


class Busy(Exception):
    """The service is to be asked again. `graders/by_model.py`, `graders/code_rule.py` → `graders/service.py`: a moment."""


class Unreachable(ConnectionError):
    """The bucket is not available now. `transports/bucket_server.py` → `transports/assembled.py`, until `peer_timeout`."""


class BroadcastError(RuntimeError):
    """A member is gone, or too slow. `transports/broadcast.py` → `transports/weight_broadcast.py`: each engine pulls."""


class VersionGone(LookupError):
    """The store has the version no longer. `weights/store.py` → `topologies/rejoining.py`: exploring restarts with the newest."""


class TakenBack(Exception):
    """The trainer went on from a checkpoint. `topologies/sql/news.py`; exploring restarts, see `VersionGone`."""

    def __init__(self) -> None:
        super().__init__("the trainer went on from a checkpoint, and later versions are gone")


# -- an episode or a group
class EpisodeFailed(Exception):
    """It cannot be finished. `envs/env_manager.py` → `explorer/group_play.py`: it is played again, or given up."""

    def __init__(self, kind: str, message: str) -> None:
        """`kind` names the reason, for the counters."""
        self.kind, self.message = kind, message
        super().__init__(f"{kind}: {message}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kind, self.message)


REFUSED = "refused"
"""The kind of an episode whose calls the model's chat template refuses."""


class Unanswered(EpisodeFailed):
    """The agent failed without one answer of the policy; ends the run where no group fares better. `envs/program/player.py`."""

    @property
    def cause(self) -> str:
        """The same for all that fail alike."""
        return self.message.strip().rpartition("\n")[2]


class StarterGone(EpisodeFailed):
    """The starter of an episode's programs was killed before it had read its order: nothing was started.
    `envs/program/process.py` → `envs/program/player.py`, where another one starts the scoring; else it costs the episode."""


FailureKind = Literal["exception", "timeout", "died", "memory"]
"""It raised an exception, or gave an invalid answer; it did not answer in time; its process ended, or was full."""


class EnvFailure(EpisodeFailed):
    """The environment's fault; its next `reset` makes a new instance. `envs/executors.py` → `envs/host.py`, which counts it."""

    kind: FailureKind


class ToolFailed(Exception):
    """A call of a tool has no result; says why, to the policy. `envs/tools/tool.py` → `envs/tools/toolbox.py`: an observation."""


class TemplateRefusal(ValueError):
    """The chat template cannot render the messages. `chat/dialogue.py` → `envs/environment_worker.py`."""


class Refused(Exception):
    """The gateway refuses a program's request; says why, to the program. `chat/session.py`,
    `chat/conversation.py` → `envs/gateway/server.py`: an answer with a status, the episode goes on."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        """`param`: the field of the request that is meant. `code`: for programs."""
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


class PackingError(ValueError):
    """Bytes that are not the group that was stored. `topologies/sql/rows.py` → `topologies/sql/groups.py`: the group."""


# -- a grade: `rewards/worker.py` makes the sample's error of it; after a second attempt `explorer/rlvr.py` drops the group
class GraderError(Exception):
    """The grader has no value for the call, for a reason of its own. `graders/pool.py`."""


class ServiceFailed(RuntimeError):
    """The service gave no answer that can be used, however often it was asked. `graders/service.py`."""


class SandboxFailed(RuntimeError):
    """The sandbox, not a program in it. `graders/sandbox/sandbox.py` → `graders/code_judge.py`, which begins another."""


class Unable(BaseException):
    """A test cannot be made here, whatever the solution: the judge's error. `graders/sandbox/run_tests.py`, beside."""


class PeerGone(Exception):
    """The solution in the sandbox has ended. `graders/sandbox/object_proxy.py` → `graders/sandbox/tester.py`: its tests fail."""


class TooManyStuck(RuntimeError):
    """So many threads hang in a user's code that no other is started. `distributed/user_code.py` → `rewards/host.py`."""


# -- a stage
class Closed(Exception):
    """The awaited thing will not come any more. `groups/groups.py` → `flow/stage.py`: the stage ends in order."""


class FlowError(RuntimeError):
    """A stage or a watcher failed; says which, and how, and the cause is its error. `flow/flow.py`."""


# -- the run: `pipeline/lifecycle.py` makes one line of it
class WorkersLost(RuntimeError):
    """More workers died than may be replaced. `engines/fleet.py`, `explorer/replaced_workers.py`, `pipeline/failures.py`."""


class NoProgress(RuntimeError):
    """Groups are dropped, and none is trained. `groups/progress.py`, `explorer/first_answers.py`."""


class Stuck(RuntimeError):
    """A simulated run waits for an impossible event, or its time stands still. `simulate/virtual_loop.py` → `cli/simulate.py`."""


class DatabaseFailed(RuntimeError):
    """A statement failed; says why, without the statement and its values. `topologies/sql/database.py`."""


class DatabaseAway(DatabaseFailed):
    """The connection is lost, or the server busy. `topologies/sql/connecting.py` → `topologies/sql/outage.py`: `peer_timeout`."""


class Expelled(RuntimeError):
    """The others took this process for dead. `topologies/sql/news.py`."""


class Missed(Expelled):
    """The others took this explorer for dead. `topologies/sql/news.py` → `topologies/rejoining.py`: it joins again."""


class Alone(RuntimeError):
    """The other side of the run does not come, or does not come back. `topologies/sql/groups.py`."""


class Superseded(RuntimeError):
    """Another run took the folder over, which this one may not write any more. `record/run_lock.py` → `record/run_record.py`."""


class CallbackError(RuntimeError):
    """A callback has failed; says which, and how. `record/callbacks.py` → `pipeline/lifecycle.py`."""


class IllegalTransition(RuntimeError):
    """An event that cannot happen in that state: a programming error. `flow/stage.py`, `engines/fleet.py`."""


class AccountingError(AssertionError):
    """A group was moved in a way that would lose or double it: a programming error. `groups/admission.py`."""
