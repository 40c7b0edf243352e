# The agent beside what programs of libaccel need.
#
#   scripts/package.sh wheel deb tarball
#   docker build -f deploy/containers/cpu.Dockerfile -t accel:cpu dist
#   docker build -f examples/cluster/compose/agent.Dockerfile -t accel:agent dist
FROM accel:cpu
COPY accel_*_amd64.deb /tmp/packages/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/packages/accel_*_amd64.deb \
 && rm -rf /var/lib/apt/lists/* /tmp/packages
# Jobs over several nodes never run as root.
RUN useradd --uid 1000 trainer && install -d -o trainer /job
CMD ["accel-agent", "--state-dir", "/var/lib/accel"]
