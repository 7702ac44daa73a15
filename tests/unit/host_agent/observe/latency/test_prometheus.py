# SPDX-License-Identifier: Apache-2.0
"""Latencies from a Prometheus server: a real HTTP server answers as Prometheus does, or does not."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from host_agent.conf import configuration
from host_agent.conf.latency import PrometheusOptions
from host_agent.model.latency import LcServer
from host_agent.observe.latency.prometheus import PrometheusFeed, ask
from placement_traits.errors import InvalidValueError

LEAST = 200
U1 = LcServer("U1", frozenset({0}), 1000.0, title="web-1", flavor="lc.web")
U2 = LcServer("U2", frozenset({0}), 1000.0, title="x", flavor="other")


class Prometheus:
    """Answers ``/api/v1/query``; ``answer`` is the body, ``queries`` what was asked.

    :ivar asks_for: the header Authorization that it asks for
    """

    def __init__(self) -> None:
        self.answer: Any = vector("0.0007")
        self.asks_for: str | None = None
        self.queries: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.queries += parse_qs(urlparse(self.path).query)["query"]
                body = json.dumps(outer.answer).encode()
                knows = outer.asks_for in (None, self.headers["Authorization"])
                self.send_response(200 if knows else 401)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    server = Prometheus()
    yield server
    server.server.shutdown()
    server.server.server_close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def feeds(prometheus: Prometheus, clock: Clock) -> PrometheusFeed:
    queries = ('lc.web=p99{vm="$name", id="$uuid"}',)
    options = PrometheusOptions(prometheus.url, queries, window_s=10.0, interval_s=3600.0)
    made = PrometheusFeed(options, LEAST, clock=clock)
    made.serve([U1, U2])
    return made


def test_a_query_names_the_server_and_its_answer_is_microseconds(prometheus: Prometheus) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    found.ask_all()
    assert prometheus.queries == ['p99{vm="web-1", id="U1"}']
    reading = found.read(U1, clock.now)
    assert reading.p99_us == pytest.approx(700.0)
    assert reading.samples == LEAST
    assert found.read(U2, clock.now).p99_us is None
    found.close()


def test_an_answer_says_nothing_about_an_action_younger_than_its_range(
    prometheus: Prometheus,
) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    found.ask_all()
    assert found.read(U1, 100.0, since_s=95.0).p99_us is None
    clock.now = 106.0
    found.ask_all()
    assert found.read(U1, 106.0, since_s=95.0).p99_us is not None
    found.close()


@pytest.mark.parametrize(
    "answer",
    [vector("NaN"), vector("-1"), vector("+Inf"), vector(), vector("1", "2"), {"data": 3}, []],
)
def test_what_is_no_latency_is_unknown(prometheus: Prometheus, answer: Any) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    prometheus.answer = answer
    found.ask_all()
    assert found.read(U1, clock.now).p99_us is None
    found.close()


def test_answers_that_stop_are_told_once_and_grow_old(
    prometheus: Prometheus, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    options = PrometheusOptions("http://127.0.0.1:1", ("any=x",), interval_s=5.0, timeout_s=0.2)
    found = PrometheusFeed(options, LEAST, clock=clock)
    found.serve([U1])
    found.ask_all()
    found.ask_all()
    assert caplog.text.count("unknown") == 1
    assert ask(PrometheusOptions(prometheus.url), "x") == pytest.approx(0.0007)
    found.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
        b"",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
    ids=["words", "half", "nothing", "nesting"],
)
def test_a_server_that_speaks_no_http_is_asked_again(answer: bytes) -> None:
    """Its errors are of http.client's own kind; they once ended the thread for good."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = threading.Semaphore(0)

        def serve() -> None:
            for _ in range(2):
                connection, _address = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                asked.release()

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError):
            ask(PrometheusOptions(url), "x")
        found = PrometheusFeed(PrometheusOptions(url, ("any=x",), interval_s=0.01), LEAST)
        found.serve([U1])
        assert asked.acquire(timeout=30)
        assert asked.acquire(timeout=30)
        found.close()


@pytest.mark.parametrize(
    ("given", "asks_for"),
    [
        ({"username": "agent", "password": "s3cret"}, "Basic YWdlbnQ6czNjcmV0"),
        ({"token": "eyJh"}, "Bearer eyJh"),
    ],
)
def test_a_server_that_asks_for_credentials_gets_them(
    prometheus: Prometheus, given: dict[str, str], asks_for: str
) -> None:
    prometheus.asks_for = asks_for
    assert ask(PrometheusOptions(prometheus.url, **given), "x") == pytest.approx(0.0007)


def test_a_refusal_is_a_sentence_that_names_the_options_and_no_secret(
    prometheus: Prometheus,
) -> None:
    prometheus.asks_for = "Bearer another"
    with pytest.raises(OSError, match=r"answers 401 Unauthorized \(see \[slo\]") as refused:
        ask(PrometheusOptions(prometheus.url, token="eyJh"), "x")
    assert "eyJh" not in str(refused.value)


def test_credentials_of_another_kind_in_netrc_are_not_sent(
    prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login root password root\n")
    monkeypatch.setenv("NETRC", str(netrc))
    prometheus.asks_for = "Bearer eyJh"
    assert ask(PrometheusOptions(prometheus.url, token="eyJh"), "x") is not None


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file, that signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prometheus")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "server.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, traditional, plain))
    return file


def test_a_server_is_trusted_by_the_authority_that_signed_it_and_by_no_other(
    prometheus: Prometheus, authority: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    prometheus.server.socket = context.wrap_socket(prometheus.server.socket, server_side=True)
    url = prometheus.url.replace("http:", "https:")
    assert ask(PrometheusOptions(url, cafile=authority), "x") == pytest.approx(0.0007)
    with pytest.raises(OSError, match="certificate verify failed"):
        ask(PrometheusOptions(url), "x")
    with pytest.raises(OSError, match=r"/none/ca\.pem"):
        ask(PrometheusOptions(url, cafile=Path("/none/ca.pem")), "x")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("username = a", "a name together with prometheus_password, or neither"),
        ("password = s3cret", "a name together with prometheus_password, or neither"),
        (
            "username = a\nprometheus_password = b\nprometheus_token = c",
            "one of prometheus_username",
        ),
    ],
)
def test_credentials_that_contradict_each_other_are_a_sentence(
    tmp_path: Path, lines: str, words: str
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(f"[slo]\nprometheus_{lines}\n")
    with pytest.raises(InvalidValueError) as refused:
        configuration.load([], default_config_files=[str(file)])
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_question_that_fails_in_an_unknown_way_does_not_end_the_thread() -> None:
    asked = threading.Semaphore(0)

    def fetch(_options: PrometheusOptions, _query: str) -> float:
        asked.release()
        raise RuntimeError("of an unknown kind")

    options = PrometheusOptions("http://p", ("any=x",), interval_s=0.01)
    found = PrometheusFeed(options, LEAST, fetch)
    found.serve([U1])
    for _ in range(2):
        assert asked.acquire(timeout=30)
    found.close()


def test_a_name_stays_within_its_quotes() -> None:
    """A tenant who calls a server so must not have another's latency read for it."""
    options = PrometheusOptions("http://p", ('any=p99{vm="$name"}',))
    assert (
        options.promql("f", "U", 'a"} or vector(0) #\\\n')
        == r"""p99{vm="a\"} or vector(0) #\\\n"}"""
    )


def test_options_are_read_and_a_bad_query_is_named(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"

    def prometheus(*queries: str) -> PrometheusOptions:
        lines = "".join(f"prometheus_query = {query}\n" for query in queries)
        file.write_text(f"[slo]\nprometheus_url = http://p:9090/\n{lines}")
        return configuration.load([], default_config_files=[str(file)]).slo.prometheus

    found = prometheus("lc.web=up", "any=rate(x[5s]) == 1")
    assert found.base_url == "http://p:9090"
    assert found.promql("lc.other", "U", "n") == "rate(x[5s]) == 1"
    with pytest.raises(InvalidValueError, match=r"prometheus_query.*nonsense.*FLAVOR=PROMQL"):
        prometheus("nonsense")
