"""What cannot be opened says so in one line, in our own words, and never with the password."""

import pytest

from omniq.errors import InvalidOption, OmniqError, SchemaMismatch, StoreUnavailable
from omniq.storage import open_storage
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from tests.redis.server import private
from tests.redis.stores import wired

SECRET = "s3cr3t-w0rd"


async def refusal(url: str) -> OmniqError:
    with pytest.raises(OmniqError) as raised:
        await open_storage(url).open()
    told = str(raised.value)
    assert SECRET not in told
    assert "\n" not in told
    assert raised.value.__cause__ is None or isinstance(raised.value.__cause__, OmniqError)
    return raised.value


@pytest.mark.parametrize(
    "where", ["redis://me:{}@127.0.0.1:1", "valkey://me:{}@localhost:1/3", "unix://me:{}@/no/such/socket"]
)
async def test_a_server_that_is_not_there(where: str) -> None:
    assert isinstance(await refusal(where.format(SECRET)), StoreUnavailable)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:{}@host:port/0",
        "redis://me:{}@host/zero",
        "redis://me:{}@host/0?namespace=a%7Bb%7D",
        "redis://me:{}@host/0?timeout=3",
        "redis://me:{}@host/0?namespace=",
        "redis://{}@host/0",  # a colon was forgotten
        "unix://me:{}@",
    ],
)
def test_an_address_that_makes_no_sense(url: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        open_storage(url.format(SECRET))
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "db", "tls", "namespace"),
    [
        ("redis://", "localhost", 6379, None, 0, False, "omniq"),
        ("valkey://db.example.org:7000/3", "db.example.org", 7000, None, 3, False, "omniq"),
        ("rediss://db.example.org?namespace=jobs", "db.example.org", 6379, None, 0, True, "jobs"),
        ("redis://[::1]:7000", "::1", 7000, None, 0, False, "omniq"),
        ("unix:///run/valkey.sock?db=2", "localhost", 6379, "/run/valkey.sock", 2, False, "omniq"),
    ],
)
def test_addresses(
    url: str, host: str, port: int, path: str | None, db: int, tls: bool, namespace: str
) -> None:
    address = Address(url, None)
    assert (address.host, address.port, address.path, address.db) == (host, port, path, db)
    assert (address.tls, address.namespace) == (tls, namespace)
    again = open_storage(address.url)._address  # type: ignore[attr-defined]
    assert (again.host, again.port, again.path, again.db, again.namespace) == (
        host,
        port,
        path,
        db,
        namespace,
    )


async def test_a_password_is_asked_for_and_used() -> None:
    with private({"appendonly": "yes", "appendfsync": "always", "requirepass": SECRET}, port=True) as server:
        assert isinstance(await refusal(server.url), StoreUnavailable)
        assert isinstance(await refusal(server.url.replace("//", f"//:not-{SECRET}@")), StoreUnavailable)
        for user in ("", "default"):
            storage = open_storage(server.url.replace("//", f"//{user}:{SECRET}@").replace("/0", "/5"))
            async with storage:
                assert await storage.counts() == {}
            assert SECRET not in repr(storage)
            assert SECRET in str(storage.url)  # for another process


async def test_a_user_who_needs_no_password() -> None:
    with private(port=True) as server:
        async with wired(server.url) as wire:
            assert await wire.call("ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all") == b"OK"
            assert await wire.call("ACL", "SETUSER", "default", "off") == b"OK"
        async with open_storage(server.url.replace("//", "//app:@")) as storage:
            assert await storage.counts() == {}


@pytest.mark.parametrize(
    ("version", "says"), [(999, "upgrade OmniQ"), (1, "empty it"), ("x", "upgrade OmniQ")]
)
async def test_a_namespace_of_another_version_is_refused(
    redis_url: str, namespace: str, version: int | str, says: str
) -> None:
    async with wired(redis_url) as wire:
        await wire.call("SET", f"{{{namespace}}}:version", version)
    with pytest.raises(SchemaMismatch, match=says):
        await RedisStorage(redis_url, namespace=namespace).open()


async def test_two_namespaces_do_not_know_of_each_other(redis_url: str, namespace: str) -> None:
    from omniq import Task

    async with (
        RedisStorage(redis_url, namespace=namespace) as one,
        RedisStorage(redis_url, namespace=f"{namespace}-2") as other,
    ):
        await one.enqueue(Task("jobs.a", unique_key="k"))
        assert await other.counts() == {}
        assert await other.claim("ann") == []
        await other.enqueue(Task("jobs.a", unique_key="k"), on_conflict="raise")
