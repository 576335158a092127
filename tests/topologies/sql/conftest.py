import itertools
import secrets
import subprocess
from contextlib import ExitStack

import postgres
import pytest
from database_party import Party
from tcp_proxy import Proxy


@pytest.fixture(scope="session")
def postgres_address():
    pytest.importorskip("psycopg")
    if reason := postgres.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            address = stack.enter_context(postgres.server())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"PostgreSQL does not start on this machine: {error}")
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def make_party(request, tmp_path):
    """`make_party()`: a run with a database of its own."""
    numbers = itertools.count()

    def make(ratio: float = 1.0) -> Party:
        number = next(numbers)
        if request.param == "sqlite":
            return Party(f"sqlite:///{tmp_path}/groups{number}.db", ratio)
        address, name = request.getfixturevalue("postgres_address"), f"run_{abs(hash(str(tmp_path)))}_{number}"
        return Party(postgres.make_database(address, name), ratio)

    return make


@pytest.fixture(scope="module")
def own_server(postgres_address):
    """A server that tests may stop and start; it has few places for clients."""
    with postgres.running(max_connections=12, superuser_reserved_connections=1) as server:
        yield server


@pytest.fixture
def fragile(own_server):
    """A run whose server may go away, and where an explorer is found dead after 8 s."""
    return Party(postgres.make_database(own_server.url, f"run_{secrets.token_hex(4)}"))


@pytest.fixture
def proxies(own_server):
    """A way to the server for each that asks for one."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Proxy("127.0.0.1", own_server.port))
