// The seat of machine 0 in etcd, for launchers that link no gRPC; see launcher/cluster_entry/etcd_seat.h.

#include "launcher/cluster/entry.h"
#include "launcher/cluster/etcd_key.h"

extern "C" __attribute__((visibility("default"))) const accel::launcher::EtcdFunctions*
accel_cluster_etcd_functions() {
  static constexpr accel::launcher::EtcdFunctions kFunctions = {
      .open = [](const accel::launcher::EtcdAccess& access, const std::string& run_id) {
        return accel::cluster::EtcdKey::open(access, run_id);
      }};
  return &kFunctions;
}
