"""Bundles are checked before anything of them is used, and what they lack has to be given."""

import hashlib
import json
from pathlib import Path

import pytest

from cli.errors import UnsafeArchive
from cli.reproduction.errors import BundleUnreadable, InputMissing, RewardUnknown
from cli.reproduction.inputs import find_inputs
from cli.reproduction.record import Record
from core.builtin_rewards.outside import Credentials, Http
from core.bundle import Bundle
from core.results import ArtifactFacts
from core.spec import BuiltinReward
from tests.factories import make_spec
from tests.unit.reproduction.bundles import ROWS, STEPS, files_of_a_run, make_bundle, write_archive

CREDENTIALS = Credentials(secret=None, headers={"Authorization": "Bearer hush"})


def read(tmp_path: Path, bundle: Bundle | None = None, files: dict[str, bytes] | None = None) -> Record:
    archive = write_archive(tmp_path / "bundle.tar", bundle or make_bundle(), files or files_of_a_run())
    return Record.read(archive, tmp_path / "unpacked")


def without_data(bundle: Bundle) -> Bundle:
    assert bundle.held_out is not None
    gone = {"member": None}
    return bundle.model_copy(
        update={
            "training": bundle.training.model_copy(update=gone),
            "held_out": bundle.held_out.model_copy(update=gone),
        }
    )


def asking_somebody() -> Bundle:
    """Of a job whose only reward is an endpoint that wants credentials."""
    digest = hashlib.sha256(CREDENTIALS.model_dump_json().encode()).hexdigest()
    http = Http(builtin="http", url="https://g.example/")
    return make_bundle(spec=make_spec(rewards=(BuiltinReward(name="ask", parameters=http, credentials_sha256=digest),)))


def test_what_is_read_is_what_was_written(tmp_path):
    record = read(tmp_path)
    assert record.metrics == STEPS
    assert record.results is not None
    assert record.bundle.job.id == "ftjob-1"


def test_a_member_that_was_changed_is_noticed(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    members = read(first).bundle.members
    files = files_of_a_run() | {"rewards/exact.py": b"def reward(completion):\n    return 1.0\n"}
    with pytest.raises(BundleUnreadable, match=r"rewards/exact\.py"):
        read(tmp_path, make_bundle(members=members), files)


def test_a_file_outside_the_archive_is_never_read(tmp_path):
    (tmp_path / "secret").write_bytes(ROWS)
    training = make_bundle().training.model_copy(update={"member": "../secret"})
    with pytest.raises(BundleUnreadable, match="does not name"):
        read(tmp_path, make_bundle(training=training))
    named = ArtifactFacts(name="../secret", size_bytes=len(ROWS), sha256=hashlib.sha256(ROWS).hexdigest())
    bundle = make_bundle(training=training, held_out=None, rewards=(), members=(named,))
    with pytest.raises(BundleUnreadable, match="secret"):
        read(tmp_path, bundle)


def test_an_archive_that_reaches_outside_is_refused(tmp_path):
    with pytest.raises(UnsafeArchive):
        read(tmp_path, files=files_of_a_run() | {"../outside": b""})


def test_what_is_no_bundle_is_refused_by_name(tmp_path):
    plain = tmp_path / "plain.tar"
    plain.write_text("not a tar")
    with pytest.raises(BundleUnreadable, match=r"plain\.tar"):
        Record.read(plain, tmp_path / "unpacked")
    with pytest.raises(BundleUnreadable, match=r"gone\.tar"):
        Record.read(tmp_path / "gone.tar", tmp_path / "unpacked")


def test_results_of_another_version_are_none(tmp_path):
    assert read(tmp_path, files=files_of_a_run() | {"results.json": b'{"schema_version": 99}'}).results is None


def test_inputs_come_out_of_the_bundle(tmp_path):
    inputs = find_inputs(read(tmp_path), [], [])
    assert inputs.training.read_bytes() == ROWS
    assert set(inputs.sources) == {"exact"}
    assert inputs.replaced == ()


def test_data_that_was_left_out_is_known_by_its_digest(tmp_path):
    record = read(tmp_path, without_data(make_bundle()))
    wrong, right = tmp_path / "wrong.jsonl", tmp_path / "right.jsonl"
    wrong.write_bytes(b"{}\n")
    right.write_bytes(ROWS)
    with pytest.raises(InputMissing, match=r"train\.jsonl"):
        find_inputs(record, [wrong], [])
    assert find_inputs(record, [wrong, right], []).training == right


def test_another_source_is_taken_and_named(tmp_path):
    record = read(tmp_path)
    other = tmp_path / "other.py"
    other.write_text("def reward(completion):\n    return 0.0\n")
    inputs = find_inputs(record, [], [f"exact={other}"])
    assert (inputs.sources["exact"], inputs.replaced) == (other, ("exact",))


@pytest.mark.parametrize("given", ["exakt=setup.py", "exact=nowhere.py", "exact"])
def test_a_reward_that_is_given_nothing_is_an_error_with_the_names(tmp_path, given):
    with pytest.raises(RewardUnknown, match="exact"):
        find_inputs(read(tmp_path), [], [given])


def test_credentials_have_to_be_given(tmp_path):
    record = read(tmp_path, asking_somebody())
    given = tmp_path / "credentials.json"
    with pytest.raises(InputMissing, match="ask"):
        find_inputs(record, [], [])
    given.write_text("[]")
    with pytest.raises(InputMissing, match="does not hold credentials"):
        find_inputs(record, [], [f"ask={given}"])
    given.write_text(CREDENTIALS.model_dump_json())
    inputs = find_inputs(record, [], [f"ask={given}"])
    assert (inputs.credentials, inputs.replaced) == ({"ask": CREDENTIALS}, ())
    given.write_text(json.dumps({"headers": {"Authorization": "Bearer new"}}))
    assert find_inputs(record, [], [f"ask={given}"]).replaced == ("ask",)
