from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from core.builtin_rewards.catalogue import BUILTINS

PATH = "/v1/rewards/builtins"


def test_every_built_in_is_listed_with_a_schema_that_its_example_fits(client: TestClient) -> None:
    listed = client.get(PATH).json()
    assert listed["object"] == "list"
    assert [one["name"] for one in listed["data"]] == list(BUILTINS)
    for one in listed["data"]:
        Draft202012Validator.check_schema(one["parameters"])
        Draft202012Validator(one["parameters"]).validate(one["example"])
        assert one["description"]


def test_the_list_is_for_callers_with_a_key(client: TestClient) -> None:
    assert client.get(PATH, headers={"Authorization": "Bearer nothing"}).status_code == 401
