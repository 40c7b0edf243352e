# The launcher, libaccel and the whole of torch with its CUDA libraries: Python scripts train on the GPUs of the host, programs of libaccel
# on its CPU. 6 GB. The driver comes from the host (NVIDIA Container Toolkit); CUDA 13 needs driver 580 or later.
#
#   scripts/package.sh wheel tarball
#   docker build -f deploy/containers/cuda.Dockerfile -t accel:cuda dist
#   docker run --rm --gpus all --shm-size=8g -v "$PWD:/work" accel:cuda accel-launch train.py
FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv g++ cmake ninja-build pkg-config \
 && rm -rf /var/lib/apt/lists/*
ENV VIRTUAL_ENV=/opt/python PATH=/opt/accel/bin:/opt/python/bin:$PATH CMAKE_GENERATOR=Ninja CMAKE_PREFIX_PATH=/opt/accel \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY accel_launch-*.whl accel-*-torch*.tar.gz /tmp/packages/
RUN python3 -m venv /opt/python \
 && pip install --no-cache-dir torch==2.11.0 \
 && pip install --no-cache-dir --no-index /tmp/packages/accel_launch-*.whl \
 && mkdir /opt/accel \
 && tar -C /opt/accel --strip-components=1 -xzf /tmp/packages/accel-*-torch*.tar.gz \
 && /opt/accel/libexec/accel/link-torch \
 && rm -r /tmp/packages
WORKDIR /work
CMD ["accel-launch", "--help"]
