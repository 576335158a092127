"""Roles that take turns on one device: in which order they start, load weights and leave, by the calls that their workers get."""

import itertools

import pytest

from roll.platform.local_backend import LocalBackend

STEPS = 4
OF_ENGINES = {"receive_bucket", "activate_weights", "generate"}
OF_TRAINER = {"train", "log_probs", "begin_export", "next_bucket", "snapshot"}
TURNS = {"sleep": False, "wake": True, "offload": False, "reload": True}
"""What is called at a turn, and whether its role is awake then."""


class Watched(LocalBackend):
    """Notes every start and every call of a worker, as (what, role)."""

    def __init__(self, fails=()):
        super().__init__()
        self.log = []
        self._fails = fails

    async def start(self, spec):
        role = spec.name.rpartition("-")[0]
        self.log.append(("start", role))
        if role in self._fails:
            raise RuntimeError("free memory on the device is less than desired")
        handle = await super().start(spec)
        call, call_for_reference = handle.call, handle.call_for_reference

        async def noted(method, *args):
            self.log.append((method, role))
            return await call(method, *args)

        async def noted_for_reference(method, *args):
            self.log.append((method, role))
            return await call_for_reference(method, *args)

        handle.call, handle.call_for_reference = noted, noted_for_reference
        return handle


@pytest.fixture
def on_one_device(make_config):
    def make(ratio, **changes):
        placed = {"actor_infer.device_mapping": "0", "async_generation_ratio": ratio, "max_steps": STEPS}
        return make_config({**placed, **changes})

    return make


def run(lab, config, backend):
    finished = lab.start(config, backend)
    assert finished.summary["status"] == "finished", finished.summary["reason"]
    lab.check_accounts(finished, config)
    return backend.log


def of_devices(log):
    """What concerns the devices, each once where it comes several times in a row."""
    known = {"start", *TURNS, *OF_ENGINES, *OF_TRAINER}
    return [event for event, _ in itertools.groupby(event for event in log if event[0] in known)]


def check_turns(log):
    """Whoever is called has been woken, and all others of its device sleep."""
    awake = {}
    for what, role in log:
        if what == "start":
            awake[role] = True
        elif what in TURNS:
            awake[role] = TURNS[what]
        if what in {"start", "wake", "reload", *OF_ENGINES, *OF_TRAINER}:
            assert [name for name, is_awake in awake.items() if is_awake] == [role], f"{what} of {role}"


def of_both(log):
    return of_devices(each for each in log if each[1] in ("actor_infer", "actor_train"))


def test_without_a_ratio_engines_load_when_the_trainer_has_left(lab, on_one_device):
    log = of_both(run(lab, on_one_device(0), Watched()))
    begin = ["start", "sleep", "start", "offload", "wake", "generate", "sleep"]
    to_the_engine = ["reload", "train", "begin_export", "next_bucket", "offload", "wake", "receive_bucket", "activate_weights"]
    step = [*to_the_engine, "generate", "sleep"]
    assert [what for what, _ in log if what != "snapshot"] == [*begin, *(STEPS - 1) * step, *to_the_engine]
    check_turns(log)


@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2])
def test_nobody_works_in_anothers_turn_at_any_ratio(lab, on_one_device, with_validation, ratio):
    changes = {"old_logprobs": "recompute", "save_steps": 2, **with_validation}
    log = run(lab, on_one_device(ratio, **changes), Watched())
    check_turns(of_both(log))
    assert log.count(("train", "actor_train")) == STEPS
    assert ("activate_weights", "actor_infer") in log and ("log_probs", "actor_train") in log


def test_three_roles_of_one_device_start_one_after_another(lab, on_one_device):
    changes = {"reference.device_mapping": "0", "use_kl_loss": True, "kl_loss_coef": 0.01}
    log = run(lab, on_one_device(1, **changes), Watched())
    events = of_devices(each for each in log if not each[1].startswith("rewards"))
    assert [event for event in events if event[0] in ("start", "sleep", "offload")][:5] == [
        ("start", "actor_infer"),
        ("sleep", "actor_infer"),
        ("start", "actor_train"),
        ("offload", "actor_train"),
        ("start", "reference"),
    ]
    check_turns(events)


def test_a_start_that_fails_lets_nobody_else_start_on_the_device(lab, on_one_device):
    backend = Watched(fails=("actor_infer",))
    failed = lab.start(on_one_device(0), backend)
    assert failed.summary["status"] == "failed" and "free memory on the device" in failed.summary["reason"]
    assert ("start", "actor_train") not in backend.log


def test_roles_on_devices_of_their_own_never_sleep(lab, make_config):
    log = run(lab, make_config(max_steps=2), Watched())
    assert not {what for what, _ in log} & TURNS.keys()


def test_roles_that_overlap_on_one_device_never_sleep_and_the_engine_starts_first(lab, on_one_device):
    log = of_both(run(lab, on_one_device(1, sharing="overlap"), Watched()))
    assert [event for event in log if event[0] == "start"] == [("start", "actor_infer"), ("start", "actor_train")]
    assert not {what for what, _ in log} & TURNS.keys()
    training = [at for at, (what, _) in enumerate(log) if what == "train"]
    assert any("generate" in [what for what, _ in log[a:b]] for a, b in itertools.pairwise(training))


def test_overlap_trains_the_same_as_devices_of_their_own_do_without_a_ratio(lab, on_one_device):
    shown = [
        [row["actor_train/grad_norm"] for row in lab.start(on_one_device(0, exp_name=name, **changes), Watched()).steps()]
        for name, changes in (("overlap", {"sharing": "overlap"}), ("apart", {"actor_infer.device_mapping": "1"}))
    ]
    # The cores of a role follow its work, so sums are taken in other orders.
    assert shown[0] == pytest.approx(shown[1], rel=1e-5) and len(shown[0]) == STEPS
