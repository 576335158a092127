"""A plan as text: the row of devices, tables with their arithmetic, formulas, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roll.core.configs.sizes import GIB, KIB, MIB
from roll.core.distributed.machine import Machine
from roll.plan.counts import Quantity, RolePlan
from roll.plan.load_report import LoadReport
from roll.plan.memory import Part, total
from roll.plan.memory_plan import RoleMemory
from roll.plan.plan import Plan

WIDEST_ROW = 64
"""Devices shown one by one; longer rows are cut into spans that carry the same roles."""
USED, SHARED, FREE = "█", "▒", "·"
INDENT = 18


def whole(plan: Plan, machine: Machine, remarks: Sequence[str], report: LoadReport) -> Iterator[str]:
    kind = "accelerators" if plan.accelerators else "CPU slots"
    nodes = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
    yield f"{plan.exp_name}: {plan.pipeline}, {plan.device_count} {kind}{nodes}"
    yield f"  reads {report.file}"
    yield from _section("devices", picture(plan.roles, plan.device_count, plan.nodes))
    if plan.quantities:
        yield from _section("amounts", _amounts(plan.quantities))
    if plan.trains and not plan.generates:
        yield from _section("log-probs", list(_rows([("teachers", plan.log_probs.teachers)])))
        yield from _section("loss", _loss(plan))
    elif plan.trains:
        yield from _section("staleness", _staleness(plan))
        log_probs = plan.log_probs
        rows = [("behaviour", log_probs.behaviour), ("proximal", log_probs.proximal), ("reference", log_probs.reference)]
        rows += [("teachers", log_probs.teachers)] if log_probs.teachers else []
        yield from _section("log-probs", [*_rows(rows), *(f"  ! {line}" for line in plan.sampling)])
        yield from _section("loss", _loss(plan))
    yield from _section("memory per device", _memory(plan))
    yield from _section("notes", _notes(plan.notes))
    yield from _section("keys", keys(report))
    yield from _section("on this machine", _here(machine, remarks))


def condensed(plan: Plan, remarks: Sequence[str]) -> Iterator[str]:
    """Yields a few lines, for the start of a run."""
    yield from picture(plan.roles, plan.device_count, plan.nodes)
    if plan.trains:
        yield from _steps(plan)
    known = [f"{' + '.join(group.roles)} {size(group.bytes)}" for group in plan.devices if group.bytes]
    if known:
        yield f"  {'memory per device':<{INDENT}}{', '.join(known)}"
    for remark in remarks:
        yield f"  ! {remark}"


def _steps(plan: Plan) -> Iterator[str]:
    steps, *amounts = plan.quantities
    shown = [_worded(each.step, each.name) for each in amounts if each.step is not None and not each.at_most]
    yield f"  {'per step':<{INDENT}}{', '.join(shown)}; {_worded(steps.run, 'steps')} in all"
    if plan.generates:
        yield f"  {'staleness':<{INDENT}}at most {_worded(plan.staleness.bound, 'versions')}: {plan.staleness.arithmetic}"
    ratio = f", {plan.loss.ratio}" if plan.generates else ""
    yield f"  {'loss':<{INDENT}}{plan.loss.total}, {'L_t' if '_t' in plan.loss.total else 'L'} = {plan.loss.policy}{ratio}"


def picture(roles: Sequence[RolePlan], device_count: int, nodes: int) -> Iterator[str]:
    """Yields the row of devices, a line for each role; `SHARED` where another role needs the device too."""
    users = [sum(device in role.devices for role in roles) for device in range(device_count)]
    owners = [tuple(device in role.devices for role in roles) for device in range(device_count)]
    per_node = device_count // nodes
    if device_count <= WIDEST_ROW:
        spans = [range(device, device + 1) for device in range(device_count)]
        header = [str(device % 10) for device in range(device_count)]
    else:
        spans = list(_spans(owners, per_node))
        header = [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans]

    def line(cells: list[str]) -> str:
        gaps = ["  " if i and span[0] % per_node == 0 else "" for i, span in enumerate(spans)]
        wide = device_count > WIDEST_ROW
        return "".join(gap + cell.center(len(name)) + " " * wide for gap, cell, name in zip(gaps, cells, header, strict=True))

    yield f"  {'':<{INDENT}}{line(header)}"
    for role in roles:
        cells = [(SHARED if users[span[0]] > 1 else USED) if span[0] in role.devices else FREE for span in spans]
        cells = [cell * len(name) for cell, name in zip(cells, header, strict=True)]
        turns = f", in turn with {' and '.join(role.shares_with)}" if role.shares_with else ""
        turns += f", at the same time as {' and '.join(role.overlaps)}" if role.overlaps else ""
        yield f"  {role.role:<{INDENT}}{line(cells)}   {role.strategy}, {role.arithmetic}{turns}"


def _spans(owners: Sequence[tuple[bool, ...]], per_node: int) -> Iterator[range]:
    start = 0
    for device in range(1, len(owners) + 1):
        if device == len(owners) or device % per_node == 0 or owners[device] != owners[start]:
            yield range(start, device)
            start = device


def size(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def _worded(count: int, plural: str) -> str:
    return f"{count:,} {plural.removesuffix('s') if count == 1 else plural}"


def _section(title: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
        yield title
        yield from found


def _rows(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:<{INDENT}}{text}" for name, text in rows if text)


def _count(quantity: Quantity, value: int | None) -> str:
    return "" if value is None else ("<= " if quantity.at_most else "") + f"{value:,}"


def _amounts(quantities: Sequence[Quantity]) -> Iterator[str]:
    cells = [(each.name, _count(each, each.step), _count(each, each.run), each.arithmetic) for each in quantities]
    header = ("", "per step", "the run" if any(each.step for each in quantities) else "per model", "")
    widths = [max(len(row[column]) for row in [header, *cells]) for column in range(3)]
    for name, step, run, arithmetic in [header, *cells]:
        yield f"  {name:<{widths[0]}}  {step:>{widths[1]}}  {run:>{widths[2]}}  {arithmetic}".rstrip()


def _staleness(plan: Plan) -> Iterator[str]:
    given = plan.staleness
    return _rows(
        [
            ("bound", f"{given.arithmetic}: no token is trained more than so many versions after the one that sampled it"),
            ("admission", given.admission),
            ("depth", given.depth),
            ("order", given.order),
            ("late groups", given.late_groups),
            ("weight update", given.weight_update),
        ]
    )


def _loss(plan: Plan) -> Iterator[str]:
    loss = plan.loss
    return _rows(
        [
            ("minimised", loss.total),
            ("L_t", loss.policy),
            ("ratio", loss.ratio),
            ("w", loss.weight.removeprefix("w = ")),
            ("left out", loss.left_out),
            ("mean", loss.aggregation),
            ("KL_t", loss.kl.removeprefix("KL_t = ")),
            ("H_t", loss.entropy.removeprefix("H_t ")),
            ("D_t", loss.divergence.removeprefix("D_t = ")),
            ("A", loss.advantage),
            ("samples", loss.masks),
        ]
    )


def _memory(plan: Plan) -> Iterator[str]:
    for role in plan.memory:
        yield from _role_memory(role)
    for group in plan.devices:
        if len(group.roles) > 1 and group.bytes:
            yield f"  {'together':<{INDENT}}{size(group.bytes)}: {_together(plan, group.roles)}"
    for part in plan.host:
        yield f"  {'on the host':<{INDENT}}{size(part.bytes)}  {part.name}: {part.formula}"


def _together(plan: Plan, names: Sequence[str]) -> str:
    beside = [role.role for role in plan.roles if role.role == "actor_infer" and role.overlaps and role.role in names]
    in_turn = [name for name in names if name not in beside]
    turns = " and ".join(in_turn) + (" take turns" if len(in_turn) > 1 else "")
    return f"{turns}{', ' if len(in_turn) > 1 else ' and '}{beside[0]} at the same time" if beside else turns


def _role_memory(role: RoleMemory) -> Iterator[str]:
    if not role.resident:
        yield f"  {role.role:<{INDENT}}{role.note}"
        return
    yield f"  {role.role:<{INDENT}}{size(role.awake)}{f'  ({role.note})' if role.note else ''}"
    yield from (_part(part, "") for part in role.resident)
    for each in role.passes:
        name = f"while {each.name}: {size(total(each.parts))}" if len(role.passes) > 1 or len(each.parts) > 1 else ""
        if name:
            yield f"    {name}"
        yield from (_part(part, "  " if name else "") for part in each.parts)


def _part(part: Part, indent: str) -> str:
    return f"    {indent}{part.name:<{INDENT - 2 - len(indent)}}{size(part.bytes):>10}  {part.formula}"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    return (f"  {note}" for note in notes)


def keys(report: LoadReport) -> Iterator[str]:
    """Yields the number of keys read, and a line for each of the others; then a section with those whose meaning differs from
    ROLL's."""
    groups = (
        ("aliased", report.aliased),
        ("without effect", report.without_effect),
        ("lacking", report.lacking),
        ("unknown", report.unknown),
        ("other defaults", report.defaults),
        ("derived", report.derived),
    )
    shown = [f"{len(notes)} {name}" for name, notes in groups if notes]
    yield f"  {', '.join([f'{report.used} keys read', *shown])}"
    for name, notes in groups:
        yield from (f"  {name}: {note}" for note in notes)
    if report.variables:
        yield f"  variables: {', '.join(report.variables)}"
    if report.differences:
        yield ""
        yield "means something else than in ROLL"
        yield from _notes([str(note) for note in report.differences])


def _here(machine: Machine, remarks: Sequence[str]) -> Iterator[str]:
    sizes = " or ".join(size(each) for each in sorted(set(machine.accelerators)))
    found = f", {len(machine.accelerators)} accelerators of {sizes}" if sizes else ""
    yield f"  {machine.cpus} CPU cores, {size(machine.memory)} of memory{found}"
    yield from (f"  ! {remark}" for remark in remarks)
