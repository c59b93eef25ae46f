"""From the settings to the store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from core.settings import Settings
from core.storage.folder import FolderStore
from core.storage.store import ObjectStore, StoreMisconfigured


def open_store(settings: Settings) -> ObjectStore:
    """The store that `store_url` names. Touches nothing yet: `check()` finds out whether it works."""
    url = urlsplit(settings.store_url)
    if url.scheme == "file" and url.netloc in {"", "localhost"} and len(url.path) > 1:
        return FolderStore(Path(unquote(url.path)))
    if url.scheme == "s3" and url.netloc:
        from core.storage.s3 import S3Store  # noqa: PLC0415 - boto3 costs 0.4 s, which a folder need not pay

        return S3Store(
            url.netloc,
            prefix=url.path,
            endpoint_url=settings.s3_endpoint_url,
            public_endpoint_url=settings.s3_public_endpoint_url,
        )
    fix = "Set PODIUM_STORE_URL to file:///folder or s3://bucket/prefix."
    raise StoreMisconfigured(f"{settings.store_url!r} names no object store.", fix=fix)
