"""What Ray's own processes say on the screen."""

from roll.platform.ray_says import shortened

ENDED = """Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user.
    [state-dump]
    [2026-11-28 08:40:42,250 C 33 33] (raylet) node_manager.cc:971: [Timeout] Exiting
    *** StackTrace Information ***
    /ray/core/src/ray/raylet/raylet(+0xff770a) [0x55c83388670a] ray::operator<<()
"""


def test_an_error_of_a_raylet_is_its_first_line():
    said = shortened({"pid": "raylet", "lines": [ENDED], "is_err": False})
    assert said["lines"] == [ENDED.split("\n")[0]] and said["is_err"] is False


def test_a_stack_is_not_shown_but_its_cause_is():
    lines = [
        "[2026-11-28 08:40:42,250 C 33 33] (raylet) node_manager.cc:971: [Timeout] Exiting because",
        "*** StackTrace Information ***",
        "/ray/raylet(+0xff770a) [0x55c8] ray::RayLog::~RayLog()",
        "/lib/x86_64-linux-gnu/libc.so.6(__libc_start_main+0x85) [0x7f] __libc_start_main",
        "/lib/x86_64-linux-gnu/libc.so.6(+0x2724a) [0x7f16a904524a]",
        "",
    ]
    said = shortened({"pid": "raylet", "ip": "10.77.0.12", "lines": lines})
    assert said["lines"] == lines[:1]
    assert shortened({"pid": "raylet", "lines": lines[1:]}) is None


def test_what_a_user_prints_stays_as_it_is():
    lines = ["*** StackTrace Information ***", "", "x(+0x12) two\nlines"]
    assert shortened({"pid": 134, "lines": lines})["lines"] == lines
