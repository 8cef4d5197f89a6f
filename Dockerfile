# Nibble's server, client and tools on Debian 12. Two stages: the first builds,
# the second holds only the programs and the libraries they need.
#
#   docker build -t nibble .
#   docker run -p 8700:8700 -p 9464:9464 -v ./models:/models:ro nibble \
#     --model smollm2=/models/SmolLM2-135M-Instruct.Q4_1.gguf

ARG DEBIAN=debian:bookworm-slim

FROM ${DEBIAN} AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ cmake ninja-build pkg-config ca-certificates \
      libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc \
      libprotobuf-dev libabsl-dev grpc-proto libssl-dev \
      prometheus-cpp-dev libcurl4-openssl-dev zlib1g-dev \
      libhwy-dev libpcre2-dev \
      nlohmann-json3-dev libboost-dev libcli11-dev libspdlog-dev \
      libbenchmark-dev
WORKDIR /src
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY proto proto
COPY base base
COPY kernels kernels
COPY model model
COPY scheduler scheduler
COPY engine engine
COPY server server
COPY tools tools
COPY bench bench
RUN cmake --preset release -DNIBBLE_TESTS=OFF -DNIBBLE_CUDA=OFF \
    && cmake --build --preset release \
         --target nibble-server nibble nibble-inspect \
    && strip build/release/bin/*

FROM ${DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-core1.0 \
      libhwy1 libpcre2-8-0 libspdlog1.10 libfmt9 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin \
         nibble
COPY --from=build /src/build/release/bin/nibble-server \
     /src/build/release/bin/nibble /src/build/release/bin/nibble-inspect \
     /usr/local/bin/
USER 10001
EXPOSE 8700 9464
# SIGTERM drains: new requests are refused, running ones finish, exit 0.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["nibble", "status", "--target", "127.0.0.1:8700", "--timeout", "2"]
# In a container the ports are published, or not, by whoever runs it.
ENV NIBBLE_LISTEN=0.0.0.0:8700 NIBBLE_METRICS=0.0.0.0:9464
ENTRYPOINT ["nibble-server"]
