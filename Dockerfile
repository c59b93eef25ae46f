# Two images from one file:
#   docker build --target api .      the ledger: HTTP API and migrations; no torch
#   docker build --target worker .   the workshop: dispatcher, Celery workers, trainer, exporter; torch with CUDA
# To pin the base exactly, pass --build-arg BASE=python:3.12-slim-bookworm@sha256:...

ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS base
ENV PATH=/opt/podium/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PODIUM_LOG_FORMAT=json \
    HF_HOME=/var/lib/podium/huggingface
# The folders exist so that a new volume mounted there belongs to podium.
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin podium \
    && install --directory --owner podium --group podium \
        /var/lib/podium /var/lib/podium/runs /var/lib/podium/store /var/lib/podium/huggingface
WORKDIR /srv/podium

# Dependencies come first and alone: a change of the source leaves their layer in the cache.
FROM base AS build
RUN python -m venv /opt/podium
COPY pyproject.toml constraints.txt README.md LICENSE ./

FROM build AS build-api
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ".[api]"
COPY . .
RUN pip install --no-cache-dir --no-deps --editable . && python -m compileall -q .

FROM build AS build-worker
ARG EXTRAS=worker,qlora,exports
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ".[${EXTRAS}]"
COPY . .
RUN pip install --no-cache-dir --no-deps --editable . && python -m compileall -q .

FROM base AS api
COPY --from=build-api /opt/podium /opt/podium
COPY --from=build-api /srv/podium /srv/podium
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-m", "cli.healthcheck", "http://127.0.0.1:8000/readyz"]
CMD ["uvicorn", "app.main:create_app", "--factory", "--host", "0.0.0.0", "--port", "8000", "--no-access-log", "--timeout-graceful-shutdown", "5"]

FROM base AS worker
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-worker /opt/podium /opt/podium
COPY --from=build-worker /srv/podium /srv/podium
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-m", "cli.healthcheck", "PODIUM_BROKER_URL"]
CMD ["celery", "-A", "worker.main", "worker", "--concurrency", "1", "--prefetch-multiplier", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
