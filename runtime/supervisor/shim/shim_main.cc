#include "runtime/supervisor/shim/shim.h"

int main(int argc, char** argv) {
  return accel::supervisor::run_shim(argc, argv);
}
