"""A folder store that takes files only once it may."""

import threading
from pathlib import Path

from core.storage.folder import FolderStore
from core.storage.store import OCTETS


class SlowStore(FolderStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()

    def put_file(self, key: str, path: Path, *, sha256: str, content_type: str = OCTETS) -> None:
        assert self.go_on.wait(60)
        super().put_file(key, path, sha256=sha256, content_type=content_type)
