"""Every admitted group meets exactly one fate, trained or dropped for a named reason, and it is written down."""

from __future__ import annotations

from collections.abc import Callable

from roll.buffer.interface import Lease
from roll.data.sample import Prompt, SampleGroup
from roll.metrics.run_log import GroupLog
from roll.rollout.admission import Admission, GroupState, Ticket


class Fates:
    """The one place that moves groups between their states. `on_change` is told when room for new groups may have come, `on_drop`
    of each group that is given up."""

    def __init__(self, admission: Admission, journal: GroupLog) -> None:
        self.admission = admission
        self._journal = journal
        self._prompts: dict[int, Prompt] = {}
        self.on_change: list[Callable[[], None]] = []
        self.on_drop: list[Callable[[int], None]] = []

    def start(self, prompt: Prompt) -> SampleGroup:
        ticket = self.admission.start()
        self._prompts[ticket.group_id] = prompt
        self.changed()
        return SampleGroup(ticket.group_id, ticket.start_version, prompt)

    def restore(self, groups: list[SampleGroup]) -> None:
        """The groups that a checkpoint's buffer brought back."""
        self._prompts = {group.group_id: group.prompt for group in groups}

    def is_live(self, group_id: int) -> bool:
        return group_id in self.admission.live

    def drop(self, group_id: int, reason: str) -> None:
        ticket = self.admission.live[group_id]
        self.admission.drop(group_id, reason)
        self._write(ticket, "dropped", reason, self.admission.version + 1, None)
        for hook in self.on_drop:
            hook(group_id)
        self.changed()

    def trained(self, lease: Lease) -> None:
        """The lease's groups were trained, on policy version `lease.step`. Journals count steps from 1."""
        for group in lease.groups:
            ticket = Ticket(group.group_id, group.start_version)
            oldest = min(sample.oldest_version for sample in group.samples)
            self._write(ticket, "trained", "", lease.step + 1, lease.step - oldest)
        self.changed()

    def changed(self) -> None:
        """Called after every change. Raises `AccountingError` at the first one after which the accounts do not balance."""
        self.admission.check()
        for hook in self.on_change:
            hook()

    def in_flight_prompts(self) -> list[Prompt]:
        """Prompts of groups that are neither trained, dropped nor buffered, in the order of admission."""
        return [self._prompts[i] for i, t in sorted(self.admission.live.items()) if t.state is GroupState.IN_FLIGHT]

    def _write(self, ticket: Ticket, fate: str, reason: str, step: int, lag: int | None) -> None:
        prompt = self._prompts.pop(ticket.group_id)
        self._journal.write(
            group_id=ticket.group_id,
            prompt_uid=prompt.uid,
            fate=fate,
            reason=reason,
            step=step,
            start_version=ticket.start_version,
            lag=lag,
        )
