# The launcher, libaccel and what compiles a program against it, for the CPU: 1.6 GB.
#
#   scripts/package.sh wheel tarball
#   docker build -f deploy/containers/cpu.Dockerfile -t accel:cpu dist
#   docker run --rm --shm-size=2g -v "$PWD:/work" accel:cpu accel-launch --cpu --num_processes 2 ./train
#
# Ranks of one machine exchange tensors in /dev/shm, which Docker makes 64 MB small: --shm-size. LibTorch is here without what its Python
# side needs; for scripts that import torch take cuda.Dockerfile, or install torch.
FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv g++ cmake ninja-build pkg-config \
 && rm -rf /var/lib/apt/lists/*
ENV VIRTUAL_ENV=/opt/python PATH=/opt/accel/bin:/opt/python/bin:$PATH CMAKE_GENERATOR=Ninja CMAKE_PREFIX_PATH=/opt/accel
COPY accel_launch-*.whl accel-*-torch*.tar.gz /tmp/packages/
RUN python3 -m venv /opt/python \
 && pip install --no-cache-dir --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 \
 && pip install --no-cache-dir --no-index /tmp/packages/accel_launch-*.whl \
 && mkdir /opt/accel \
 && tar -C /opt/accel --strip-components=1 -xzf /tmp/packages/accel-*-torch*.tar.gz \
 && /opt/accel/libexec/accel/link-torch \
 && rm -r /tmp/packages
WORKDIR /work
CMD ["accel-launch", "--help"]
