# An image with the command cse, for CPUs: docker build -t cse . && docker run --rm -v "$PWD:/data" cse train corpus.txt
FROM rust:1.89-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /venv
COPY constraints.txt .
RUN /venv/bin/pip install --no-cache-dir -c constraints.txt maturin
COPY pyproject.toml Cargo.toml Cargo.lock README.md LICENSE ./
COPY rust rust
COPY python python
RUN /venv/bin/maturin build --release --locked --out /dist

FROM python:3.13-slim-bookworm
# The index of PyTorch has builds without CUDA, which are a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/
COPY --from=build /dist /tmp/dist
RUN pip install --no-cache-dir -c /tmp/constraints.txt --extra-index-url "$TORCH_INDEX" \
        "cse[offline,search,plots] @ file://$(ls /tmp/dist/*.whl)" \
    && rm -r /tmp/dist /tmp/constraints.txt \
    && useradd --create-home --uid 1000 cse
USER 1000
WORKDIR /data
ENTRYPOINT ["cse"]
CMD ["--help"]
