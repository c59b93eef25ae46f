"""The curl lines that do what the demo does, ready to paste."""

import json
from dataclasses import dataclass
from typing import Any

ID_OF = """python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'"""


@dataclass(frozen=True, slots=True)
class Curl:
    url: str
    api_key: str

    def call(self, path: str, *arguments: str) -> str:
        return " ".join(("curl -sS", self.url + path, f"-H 'Authorization: Bearer {self.api_key}'", *arguments))

    def upload_file(self, path: str) -> str:
        return self.call("/v1/files", "-F purpose=fine-tune", f"-F file=@{path}")

    def upload_reward(self, path: str, *, name: str) -> str:
        return self.call("/v1/rewards", f"-F name={name}", f"-F file=@{path}")

    def submit(self, spec: dict[str, Any]) -> str:
        body = json.dumps(spec).replace("'", r"'\''")
        return self.call("/v1/fine_tuning/jobs", "-H 'Content-Type: application/json'", f"-d '{body}'")

    def poll(self, job_id: str) -> str:
        return self.call(f"/v1/fine_tuning/jobs/{job_id}")

    def download(self, job_id: str) -> list[str]:
        job = f"/v1/fine_tuning/jobs/{job_id}"
        return [
            self.call(f"{job}/results", "-o results.json"),
            self.call(f"{job}/adapter", "-o adapter.tar"),
        ]
