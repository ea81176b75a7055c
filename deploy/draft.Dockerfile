# The proposers. EXTRAS=device,gpu adds the GPU kernels' libraries.
# Build from the repository's root: docker build -f deploy/draft.Dockerfile -t slipstream-draft .
FROM python:3.12-slim AS build
ARG EXTRAS=device
# Where to find wheels besides the default index, such as torch's CPU builds.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
RUN python -m venv /opt/slipstream
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY draft_service draft_service
COPY kernels kernels
COPY launcher launcher
COPY protos protos
RUN /opt/slipstream/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:3.12-slim
COPY --from=build /opt/slipstream /opt/slipstream
ENV PATH=/opt/slipstream/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home slipstream && install -d -o 10001 /cache
USER 10001
EXPOSE 50053
ENTRYPOINT ["python", "-m", "draft_service"]
