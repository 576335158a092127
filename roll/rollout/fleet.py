"""The states of the inference engines' replicas: which may serve, and with which weights. Pure.

    SERVING ──died──▶ DEAD ──restart──▶ STARTING ──started──▶ LOADING ──verified──▶ SERVING
                       ▲                   │ died                │ died
                       └───────────────────┴─────────────────────┘

Replicas may serve different policy versions; the oldest of them is the fleet's. The only way back to SERVING is a verified load
of that one.
"""

from __future__ import annotations

from enum import StrEnum

from roll.errors import IllegalTransition, WorkersLost


class EngineState(StrEnum):
    SERVING = "serving"
    DEAD = "dead"
    STARTING = "starting"
    LOADING = "loading"


class EngineEvent(StrEnum):
    DIED = "died"
    RESTART = "restart"
    STARTED = "started"
    VERIFIED = "verified"


TRANSITIONS: dict[tuple[EngineState, EngineEvent], EngineState] = {
    (EngineState.SERVING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.STARTING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.LOADING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.DEAD, EngineEvent.RESTART): EngineState.STARTING,
    (EngineState.STARTING, EngineEvent.STARTED): EngineState.LOADING,
    (EngineState.LOADING, EngineEvent.VERIFIED): EngineState.SERVING,
}
"""What is not here cannot happen, and is refused."""


class Fleet:
    def __init__(self, replicas: int, version: int, max_restarts: int, empty: bool = False, restarts: int = 0) -> None:
        """All engines serve `version`, or have no weights yet (`empty`) and load it first. `max_restarts`: the limit over all
        engines in a run, of which it has had `restarts`."""
        self.version = version
        """The oldest policy version that a serving replica has; while none serves, the last such."""
        self.versions = [version] * replicas
        """What each replica serves, or served when it was lost."""
        self.states = [EngineState.LOADING if empty else EngineState.SERVING] * replicas
        self.restarts = restarts
        self._max_restarts = max_restarts

    @property
    def serving(self) -> list[int]:
        return [replica for replica, state in enumerate(self.states) if state is EngineState.SERVING]

    def died(self, replica: int) -> bool:
        """Records a death; False if it was known already."""
        if self.states[replica] is EngineState.DEAD:
            return False
        self._take(replica, EngineEvent.DIED)
        self._settle()
        return True

    def loaded(self, replica: int, version: int) -> None:
        """A serving replica serves `version` from now on."""
        self.versions[replica] = version
        self._settle()

    def restart(self, replica: int) -> None:
        """Raises `WorkersLost` if the restarts are used up."""
        if self.restarts >= self._max_restarts:
            raise WorkersLost(f"engine {replica} died, and max_engine_restarts ({self._max_restarts}) are used up")
        self._take(replica, EngineEvent.RESTART)
        self.restarts += 1

    def unplaced(self, replica: int) -> None:
        """The restart did not begin: there is no place for it."""
        self._take(replica, EngineEvent.DIED)
        self.restarts -= 1

    @property
    def lost(self) -> bool:
        """Whether no replica serves, or is about to."""
        return all(state is EngineState.DEAD for state in self.states)

    def started(self, replica: int) -> None:
        self._take(replica, EngineEvent.STARTED)

    def verified(self, replica: int, version: int) -> None:
        """`version`: what the replica itself says it serves. `ValueError` unless it is the fleet's."""
        if version != self.version:
            raise ValueError(f"engine {replica} serves version {version}, the others {self.version}")
        self._take(replica, EngineEvent.VERIFIED)
        self.versions[replica] = version

    def _settle(self) -> None:
        self.version = min((self.versions[replica] for replica in self.serving), default=self.version)

    def _take(self, replica: int, event: EngineEvent) -> None:
        following = TRANSITIONS.get((self.states[replica], event))
        if following is None:
            raise IllegalTransition(f"engine {replica} is {self.states[replica]}: {event} cannot happen")
        self.states[replica] = following
