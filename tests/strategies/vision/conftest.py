import pytest
from programs import Programs


@pytest.fixture(scope="session")
def programs(forks, tmp_path_factory):
    """Starts ranks."""
    return Programs(tmp_path_factory.mktemp("programs"), forks)
