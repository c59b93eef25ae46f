"""Files that an exporter makes for its job: objects first, then the row that shows them."""

from pathlib import Path

from core import keys
from core.db import exports
from core.db.exports import Claim
from core.db.session import Sessions
from core.failpoints import failpoint
from core.storage.store import ObjectStore, digest_of


class Artifacts:
    """Of one claim."""

    def __init__(self, sessions: Sessions, store: ObjectStore, claim: Claim) -> None:
        self._sessions = sessions
        self._store = store
        self._claim = claim

    def put(self, name: str, path: Path, *, content_type: str) -> None:
        """Make the file downloadable under the name, in place of its last version. Raises `ClaimLost`."""
        digest = digest_of(path)
        key = keys.export(self._claim.job_id, self._claim.target, self._claim.attempt, digest)
        self._store.put_file(key, path, sha256=digest, content_type=content_type)
        failpoint("export.file_put")
        with self._sessions.begin() as session:
            old = exports.put_artifact(
                session,
                self._claim,
                name=name,
                key=key,
                size_bytes=path.stat().st_size,
                sha256=digest,
                content_type=content_type,
            )
        if old not in (None, key):
            self._store.delete(old)
