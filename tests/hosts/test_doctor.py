"""`roll doctor --cluster` says of every host what a run will miss there."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from roll.cli.doctor_cluster import fingerprint, lateness

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(300)]


def asked(here, address, *options):
    command, environment = here.roll(here.hosts[0], "doctor", "--cluster", "--json", *options, RAY_ADDRESS=address)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout, done.stderr
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)["findings"]}


def test_hosts_that_are_alike_are_fit(site):
    here = site(3)
    address = here.start_ray()
    options = ("--output_dir", str(here.hosts.shared / "output"), "--model", str(here.world.folder / "model"))
    code, found = asked(here, address, *options)
    assert code == 0, found
    assert "Mbit/s to h0" in found["from h1 (10.77.0.11)"]["text"]
    assert found["h0 (10.77.0.10)"]["state"] == "ok"
    assert not list((here.hosts.shared / "output").iterdir())


def test_what_one_host_lacks_is_told_with_its_name(site):
    here = site(3, rate="20mbit")
    address = here.start_ray()
    for host in (here.hosts[0], here.hosts[1]):
        shutil.copytree(here.world.folder / "model", host.folder / "model")
    (here.hosts[1].folder / "model" / "config.json").write_text("{}")
    here.hosts[1].run("ip route add blackhole 10.77.0.12")
    code, found = asked(here, address, "--output_dir", "/mnt/output", "--model", "/mnt/model")
    assert code == 1
    assert "/mnt/model differs" in found["h1 (10.77.0.11)"]["text"]
    assert "/mnt/model is not there" in found["h2 (10.77.0.12)"]["text"]
    assert "/mnt/output is not the driver's" in found["h2 (10.77.0.12)"]["text"]
    assert "cannot reach h2 (10.77.0.12): " in found["from h1 (10.77.0.11)"]["text"]
    assert found["h0 (10.77.0.10)"]["state"] == "ok"


@pytest.mark.parametrize(("clock", "late"), [(15.0, 0.0), (22.0, 2.0), (5.0, -5.0), (10.0, 0.0)])
def test_a_clock_counts_as_wrong_only_as_far_as_the_question_does_not_explain_it(clock, late):
    assert lateness(10.0, clock, 20.0) == late


def test_a_fingerprint_follows_names_sizes_and_beginnings(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 100)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b") != fingerprint(tmp_path / "none") == ""
    (tmp_path / "b/model.safetensors").write_bytes(b"y" * 100)
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")
