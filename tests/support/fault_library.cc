// A library that fault_unloadable needs and the loader does not find.
extern "C" __attribute__((visibility("default"))) int fault_library_answer() {
  return 42;
}
