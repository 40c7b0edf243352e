# The Debian 12 packages and PyPI wheels that accel needs: the one list, sourced by setup.sh.
# shellcheck shell=bash disable=SC2034

# To build and run.
ACCEL_BUILD_PACKAGES=(
  g++ cmake ninja-build ccache mold pkg-config git
  libboost1.81-dev libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libhwloc-dev libnuma-dev libxxhash-dev libgloo-dev
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libssl-dev libsystemd-dev
  python3 python3-venv ca-certificates
)

# To test: frameworks, sanitizers and fuzzers, and the programs that integration tests drive.
ACCEL_TEST_PACKAGES=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang libclang-rt-14-dev clang-format clang-tidy
  tmux procps util-linux iproute2
  dpkg-dev rpm file systemd etcd-server openssl prometheus
  slurmctld slurmd slurm-client munge openmpi-bin libopenmpi-dev gfortran pdsh zsh fish
  chromium chromium-driver doxygen graphviz
)

# LibTorch is the wheel; a machine without GPU needs these three alone.
ACCEL_TORCH_WHEELS=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# What the headers of nvidia-cuda-runtime include: libaccel_cuda.so is compiled with them.
ACCEL_CUDA_HEADERS=(nvidia-cuda-crt==13.0.88)

# What the peer tests and the benchmarks compare with. The second line is what `accel export` takes models from: the newest
# transformers and timm that work with this torch, the torchvision that belongs to it (timm asks for one), and diffusers.
# The last line are the trackers that tests read or run (310 MB, a minute): TensorBoard's reader, and three SDKs that work without
# a service. MLflow keeps its local store in a database, hence sqlalchemy and alembic.
ACCEL_PEER_WHEELS=(torch==2.11.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6 pyyaml==6.0.3
  transformers==5.24.0 timm==1.0.31 torchvision==0.26.0 diffusers==0.42.1
  tensorboard==2.21.0 wandb==0.31.0 mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1 trackio==0.43.0)

# What makes the documentation's site (.deps/pages), what opens pages in Chromium, and what checks manifests of Kubernetes.
ACCEL_PAGES_WHEELS=(mkdocs-material==9.8.2 selenium==4.46.0 kubernetes-validate==1.37.0)
