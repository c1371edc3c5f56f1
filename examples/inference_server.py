"""A model behind HTTP: each request runs under hmp.autocast on a thread of its own.

    python examples/inference_server.py

A network learns handwritten digits in a few seconds. It is then served twice, in float32 and in bfloat16, to four clients at once over
real connections. Autocast belongs to a thread, so the handler enters it; the weights are cast once, at the first request, and
`hmp.cache.info()` shows that all threads use these copies. (`torch.autocast` forgets its casts where a region ends, so it would cast
all weights for every request.) Printed are the latencies that the clients see, and how many digits they got right.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

CLIENTS = 4
IMAGES = 16  # in a request
TEST = 320


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def trained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(25):
        batch = torch.randint(len(images), (128,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@contextlib.contextmanager
def serving(model: nn.Module, region: Callable[[], AbstractContextManager[object]]) -> Iterator[int]:
    """Answers requests while the block runs; gives the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection serves many requests
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            images = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with torch.inference_mode(), region():
                answer = model(torch.tensor(images)).argmax(1).tolist()
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """One line for each request is too much here."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client(port: int, images: torch.Tensor, labels: torch.Tensor, requests: int) -> tuple[list[float], int]:
    """The seconds that each request took, and how many images were named rightly."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    seconds, right = [], 0
    for request in range(requests):
        start = request * IMAGES % len(images)
        body = json.dumps(images[start : start + IMAGES].tolist())
        begun = time.perf_counter()
        connection.request("POST", "/", body)
        answer = json.loads(connection.getresponse().read())
        seconds.append(time.perf_counter() - begun)
        right += sum(map(int.__eq__, answer, labels[start : start + IMAGES].tolist()))
    connection.close()
    return seconds, right


def measure(name: str, port: int, images: torch.Tensor, labels: torch.Tensor, requests: int) -> tuple[float, float]:
    client(port, images, labels, 3)  # the first ones load and cast
    with ThreadPoolExecutor(CLIENTS) as pool:
        results = [pool.submit(client, port, images, labels, requests) for _ in range(CLIENTS)]
    seconds = [second for result in results for second in result.result()[0]]
    right = sum(result.result()[1] for result in results) / (len(seconds) * IMAGES)
    cuts = statistics.quantiles(seconds, n=100)
    p50, p99 = cuts[49] * 1e3, cuts[98] * 1e3
    print(f"{name:<10} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   {right:.1%} right   {len(seconds)} requests")
    return p50, p99


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model in float32 and in bfloat16, and compare the latencies.")
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    requests = parser.parse_args().requests
    images, labels = digits()
    model = trained(images[:-TEST], labels[:-TEST])
    torch.set_num_threads(1)  # the requests are the threads
    test = images[-TEST:], labels[-TEST:]

    with serving(model, contextlib.nullcontext) as port:
        float32 = measure("float32", port, *test, requests)
    hmp.cache.clear()
    region = hmp.autocast("cpu")  # one serves all threads
    with serving(model, lambda: region) as port:
        bfloat16 = measure("bfloat16", port, *test, requests)
    ratios = [low / full for low, full in zip(bfloat16, float32, strict=True)]
    print(f"bfloat16 / float32: p50 {ratios[0]:.2f}, p99 {ratios[1]:.2f}")
    cache = hmp.cache.info()
    print(f"weights cast {cache.misses} times, their copies used {cache.hits:,} times by all threads")


if __name__ == "__main__":
    main()
