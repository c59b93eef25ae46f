"""The server's own pages: every error that it answers with is explained where its `docs` points."""

import re

import pytest


def test_the_documentation_names_the_schema_and_the_errors(client):
    page = client.get("/docs").text
    for link in re.findall(r'href="([^"]+)"', page):
        assert client.get(link).status_code in {200, 503}, link


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/files/file-0"), ("GET", "/nowhere"), ("PUT", "/v1/files"), ("POST", "/v1/fine_tuning/jobs")],
)
def test_the_docs_of_an_error_are_on_the_server(client, method, path):
    error = client.request(method, path).json()["error"]
    page, anchor = error["docs"].split("#")
    assert anchor == error["code"]
    assert f'id="{anchor}"' in client.get(page).text
