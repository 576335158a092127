import itertools
import subprocess
from contextlib import ExitStack

import postgres
import pytest
from database_party import Party
from sqlalchemy import create_engine, text


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
        engine = create_engine(f"{address}/postgres", isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return Party(f"{address}/{name}", ratio)

    return make
