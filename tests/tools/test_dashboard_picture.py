"""The picture of the dashboard, from the answers of a server that speaks as Prometheus does."""

import json
import math
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples/monitoring/dashboard.json").read_text())


@pytest.fixture
def prometheus(monkeypatch):
    """Its address, and the queries that were asked. One series, served in the first and the last of ten minutes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            asked.append(query["query"])
            begin, end = float(query["start"]), float(query["end"])
            values = [[begin + second, "2"] for second in range(0, 61, 3)]
            values += [[end - second, "3"] for second in range(60, -1, -3)]
            series = [{"metric": {"run": "r", "role": "actor_train", "engine": "e"}, "values": values}]
            body = json.dumps({"status": "success", "data": {"result": series}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_every_query_of_the_dashboard_is_asked_for_the_run_and_drawn(prometheus, tmp_path):
    from dashboard_picture import Server, picture
    from PIL import Image

    address, asked = prometheus
    picture(DASHBOARD, Server(address, "my_run", 10), tmp_path / "picture.png")
    expected = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert expected and asked == [query.replace("$run", "my_run") for query in expected]
    assert not any("$" in query for query in asked), "a variable that only Grafana knows"
    with Image.open(tmp_path / "picture.png") as drawn:
        assert len(drawn.getcolors()) > 10


def test_a_curve_is_named_by_its_legend_and_broken_where_nothing_was_served(prometheus):
    from dashboard_picture import Server

    address, _ = prometheus
    (curve,) = Server(address, "r", 10).curves({"expr": "up", "legendFormat": "{{role}} of {{run}}"})
    assert curve.name == "actor_train of r"
    (broken,) = [at for at, value in zip(curve.times, curve.values, strict=True) if math.isnan(value)]
    assert (curve.times[0], curve.times[-1], broken) == pytest.approx((0, 10, 9))
    assert {value for at, value in zip(curve.times, curve.values, strict=True) if at < 8} == {2}
