// A worker that the loader refuses to start, because its library is nowhere to be found.
extern "C" int fault_library_answer();

int main() {
  return fault_library_answer();
}
