"""`podium reproduce` against a real server that cannot run the job: said before anything is trained."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from core.bundle import Bundle
from tests.servers.api import running_api
from tests.unit.reproduction.bundles import write_archive

PODIUM = Path(sys.executable).with_name("podium")


def test_a_model_at_another_revision_is_refused_with_what_to_do(app, client, submit, tmp_path):
    job = submit()
    archive = client.get(f"/v1/fine_tuning/jobs/{job['id']}/bundle").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}
    bundle = Bundle.model_validate_json(files.pop("bundle.json"))
    model = bundle.spec.model.model_copy(update={"revision": "f" * 64})
    other = bundle.model_copy(update={"spec": bundle.spec.model_copy(update={"model": model})})
    path = write_archive(tmp_path / "bundle.tar", other, files)
    api_key = client.headers["Authorization"].removeprefix("Bearer ")
    with running_api(app) as url:
        command = [PODIUM, "reproduce", path, "--url", url, "--api-key", api_key]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        jobs = client.get("/v1/fine_tuning/jobs").json()["data"]
    assert finished.returncode == 1
    assert "cannot run this job" in finished.stderr
    assert "is at revision" in finished.stderr
    assert "PODIUM_MODELS" in finished.stderr
    assert len(jobs) == 1, "nothing was submitted"
