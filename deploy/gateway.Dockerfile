# Tokenizer, chat template and the two public APIs; no torch.
# Build from the repository's root: docker build -f deploy/gateway.Dockerfile -t slipstream-gateway .
FROM python:3.12-slim AS build
ARG EXTRAS=gateway
# Where to find wheels besides the default index, such as torch's CPU builds.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
RUN python -m venv /opt/slipstream
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gateway gateway
COPY launcher launcher
COPY protos protos
RUN /opt/slipstream/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:3.12-slim
COPY --from=build /opt/slipstream /opt/slipstream
ENV PATH=/opt/slipstream/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home slipstream && install -d -o 10001 /cache
USER 10001
EXPOSE 8000 50051
ENTRYPOINT ["python", "-m", "gateway"]
