# forkpoint as one static binary on an empty base: no shell, no libc, no package manager.
#
#   docker build -t forkpoint:0.1.0 .
#   docker run --rm --read-only --cap-drop ALL -p 127.0.0.1:8787:8787 forkpoint:0.1.0

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src

# The Debian release is fixed by the line above, and a release gets security updates but no new versions.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates make musl-tools perl \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add "$(uname -m)-unknown-linux-musl" \
    && printf '[build]\ntarget = "%s-unknown-linux-musl"\n' "$(uname -m)" > "$CARGO_HOME/config.toml"

# The dependencies by themselves: this layer is built again only when one of them changes.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src && touch src/lib.rs && echo 'fn main() {}' > src/main.rs \
    && cargo build --locked --release --bin forkpoint

# cargo judges by time, and the sources may be older than the stand-ins that were just built.
COPY config/prices.toml config/prices.toml
COPY dashboards/README.md dashboards/README.md
COPY src src
RUN touch src/lib.rs src/main.rs \
    && cargo build --locked --release --bin forkpoint \
    && install -D target/*-linux-musl/release/forkpoint /image/forkpoint \
    && install -D -m 0644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt


FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="forkpoint" \
      org.opencontainers.image.description="A reverse proxy that lets parallel sub-agents share one prompt-cache prefix" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"

COPY --from=build /image/ /

# Inside a container loopback is nobody else's, so clients and scrapers get doors that they can reach. The admin
# port stays on loopback: it shows more than health and metrics.
ENV FORKPOINT_LISTEN=0.0.0.0:8787 \
    FORKPOINT_SERVER__METRICS_LISTEN=0.0.0.0:8790 \
    FORKPOINT_LOG__FORMAT=json
EXPOSE 8787 8790

# By number, because there is no file of names, and because Kubernetes must see that it is not root.
USER 65532:65532
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/forkpoint", "healthcheck"]
ENTRYPOINT ["/forkpoint"]
CMD ["serve"]
