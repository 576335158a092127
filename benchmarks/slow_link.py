"""What an explorer behind a slow link costs: the run's time for a step beside that without the link, with whole versions and with
what changed (`weight_anchor_interval`).

Trainer and explorer are the product's commands (--local), in bfloat16. The weights' bytes go through a proxy in this process,
which lets `--mbit` Mbit/s pass to the explorer, on all connections together, each byte `--delay_ms` later than it came; the
database of groups does not. The time of a step is that between two steps in the trainer's database, its median after the first
ones. `update`: from the end of a step to its weights in service.

    python benchmarks/slow_link.py [--mbit 100] [--delay_ms 50] [--anchors 1 10] [--steps 15] [--hidden 512] [--layers 8]
        [--batch 8] [--response 160]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import letters
from pipeline_run import LIMIT_S, ROOT, save_results
from weights_apart import WARM_UP, command, watch

PIECE = 1 << 14
"""Bytes that pass at once."""


class Proxy:
    """Between the explorer and the trainer's port."""

    def __init__(self, port: int, mbit: float, delay_s: float) -> None:
        self._port, self._rate, self._delay_s = port, mbit * 125_000, delay_s
        self._lock, self._free_at = threading.Lock(), 0.0
        self.passed = 0
        """Bytes to the explorer."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                reader, _ = self._server.accept()
            except OSError:
                return
            trainer = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, counts in ((reader, trainer, False), (trainer, reader, True)):
                pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=self._read, args=(source, pieces, counts), daemon=True).start()
                threading.Thread(target=self._write, args=(sink, pieces), daemon=True).start()

    def _read(self, source: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]], counts: bool) -> None:
        piece = b"first"
        while piece:
            try:
                piece = source.recv(PIECE)
            except OSError:
                piece = b""
            passes_at = time.monotonic()
            if counts:
                with self._lock:
                    self._free_at = passes_at = max(passes_at, self._free_at) + len(piece) / self._rate
                    self.passed += len(piece)
                time.sleep(max(passes_at - time.monotonic(), 0))
            pieces.put((passes_at + self._delay_s, piece))

    def _write(self, sink: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        piece = b"first"
        while piece:
            at, piece = pieces.get()
            time.sleep(max(at - time.monotonic(), 0))
            try:
                sink.sendall(piece) if piece else sink.shutdown(socket.SHUT_WR)
            except OSError:
                return


def measure(folder: Path, out: Path, anchor: int, args: argparse.Namespace, mbit: float | None) -> dict[str, float]:
    """Medians of a run's steps after the first ones. `mbit`: None without a link."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    steps = WARM_UP + args.steps
    more = [f"rollout_batch_size={args.batch}", f"response_length={args.response}", "actor_train.model_args.dtype=bf16"]
    more += ["actor_infer.model_args.dtype=bf16", f"weight_anchor_interval={anchor}"]
    more += [f"actor_train.training_args.per_device_train_batch_size={args.batch * 2}"]
    out.mkdir()
    proxy: Proxy | None = None
    processes = []
    with (out / "console.txt").open("w") as console:

        def start(*half: str) -> None:
            line = [*command(folder, out, "object_store", steps, *half), *more]
            processes.append(subprocess.Popen(line, cwd=ROOT, env=environment, stdout=console, stderr=console))

        try:
            start("mode=train", "actor_train.device_mapping=0")
            if mbit is not None:
                proxy = between(out / "run" / "weights" / "server.json", processes[0], mbit, args.delay_ms / 1e3)
            start("mode=explore", "actor_infer.device_mapping=0")
            trained, _, served = watch(out / "run" / "groups.db", steps, processes, args.batch)
            if any(process.wait(LIMIT_S) for process in processes):
                raise RuntimeError(f"the run failed:\n{(out / 'console.txt').read_text()[-3000:]}")
        finally:
            for process in processes:
                process.kill()
            if proxy is not None:
                proxy.close()
    counted = range(1 + WARM_UP, steps)
    took = statistics.median(trained[step] - trained[step - 1] for step in counted)
    update = statistics.median(served[step] - trained[step] for step in counted)
    whole = (trained[steps - 1] - trained[WARM_UP]) / len(counted)
    return {"step_s": took, "mean_s": whole, "update_s": update, "link_mb": proxy.passed / 1e6 / (steps + 1) if proxy else 0.0}


def between(endpoint: Path, trainer: subprocess.Popen[bytes], mbit: float, delay_s: float) -> Proxy:
    """A proxy that explorers find in the place of the trainer, as soon as that listens."""
    while not endpoint.exists():
        if trainer.poll() is not None:
            raise RuntimeError("the trainer failed")
        time.sleep(0.01)
    found = json.loads(endpoint.read_text())
    proxy = Proxy(found["port"], mbit, delay_s)
    endpoint.write_text(json.dumps({**found, "port": proxy.port}))
    return proxy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--delay_ms", type=float, default=50.0, help="each way")
    parser.add_argument("--anchors", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--steps", type=int, default=15, help="of each run, besides the first ones")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--response", type=int, default=160)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = letters.make(folder, args.hidden, args.layers, args.batch * (WARM_UP + args.steps + 4))
        print(f"{parameters / 1e6:.1f} M parameters, {parameters * 2 / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
        print(f"{'':22}{'step, s':>9}{'mean':>7}{'update, s':>11}{'link, MB a step':>17}")
        for number, (anchor, mbit) in enumerate([(1, None), *((anchor, args.mbit) for anchor in args.anchors)]):
            row = {"anchor": anchor, "mbit": mbit, **measure(folder, folder / f"run-{number}", anchor, args, mbit)}
            label = f"{'no link' if mbit is None else f'{mbit:g} Mbit/s'}, anchor {anchor}"
            print(f"{label:22}{row['step_s']:9.2f}{row['mean_s']:7.2f}{row['update_s']:11.2f}{row['link_mb']:17.2f}", flush=True)
            rows.append(row)
    save_results("slow_link", {"parameters": parameters, "delay_ms": args.delay_ms, "rows": rows})


if __name__ == "__main__":
    main()
