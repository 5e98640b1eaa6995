"""A browser and a server for every file; every page is watched for errors and for requests to other hosts."""

import pytest

from tests.support import browser
from tests.support.serving import served


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(chromium):
    """Its address. Behind the browser, so that nothing is loaded where there is none."""
    with served(browser.german_english()) as (url, _):
        yield url


@pytest.fixture
def visits(chromium):
    found = browser.Visits(chromium)
    yield found
    found.close()
    assert not found.foreign
    assert not found.unforgiven


@pytest.fixture
def page(visits, server):
    return visits.open(server)
